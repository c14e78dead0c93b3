"""The run of a group: one barrier stage of a master, which is the run's only worker, and devices.

Spark starts all tasks of a barrier stage at once, and ends all if one of them is lost; then the
driver submits them again. The tasks learn from Spark where the master listens. The master tells the
driver what the user should know, and the driver gives each task its part of the model.
"""

from __future__ import annotations

import contextlib
import json
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec
import numpy as np

from distkeras_grid.errors import RemoteProtocolError, ServerUnreachableError, StartTimeoutError
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.rpc import ANSWER, Module, serve
from distkeras_grid.model_parallel.wire import (
    BROKEN,
    ArrayChannel,
    Call,
    HandshakeListener,
    connect,
)
from distkeras_grid.parameter_server.auth import new_key
from distkeras_grid.parameter_server.settings import BindAddress, ServerAddress
from distkeras_grid.parameter_server.timeouts import CONNECT_SECONDS, STALL_SECONDS
from distkeras_grid.parameter_server.transports import own_address, unreachable
from distkeras_grid.spark.session import active_session
from distkeras_grid.spark.worker_jobs import lack_of_slots
from distkeras_grid.spec import RunSpec
from distkeras_grid.worker.task import WorkerPlan, prepare_worker_process, run_worker

if TYPE_CHECKING:
    import keras
    import pyarrow as pa

    from distkeras_grid.engine.keras_engine import KerasEngine
    from distkeras_grid.trainers.preparation import TrainingJob
    from distkeras_grid.trainers.run_status import RunProgress

#: Number of the master among the tasks.
MASTER = 0


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """What all tasks of a group must know; it travels in their closure."""

    run: str
    spec: RunSpec
    count: int  # Number of tasks, the master included
    driver: ServerAddress  # Where the driver takes reports
    key: bytes = field(repr=False)  # With which the tasks and the driver prove who they are
    # Builds the engine of the master, once the devices are there
    engine: Callable[[WorkerPlan, DeviceGroup, DriverCaller], Any]
    # Builds what a device computes with
    module: Callable[[WorkerPlan, int, DriverCaller], Module]


class DriverCaller:
    """What a task tells and asks the driver."""

    def __init__(self, plan: GroupPlan, number: int) -> None:
        self._plan, self._number = plan, number

    def report(
        self, lines: Sequence[str], shares: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """Tell what the user should know; the training does not depend on it."""
        # If the driver has ended the run, its parameter server reports that, too.
        with contextlib.suppress(*BROKEN):
            self._ask("report", {"lines": list(lines), "shares": shares})

    def part(self) -> bytes:
        """Return this task's part of the model, as an archive."""
        (archive,) = self._ask("part", {}).arrays
        return bytes(archive)

    def _ask(self, name: str, values: Mapping[str, Any]) -> Call:
        plan = self._plan
        with connect(plan.driver, plan.run, plan.key, self._number, CONNECT_SECONDS) as channel:
            try:
                channel.send(name, values)
                answer = channel.receive(STALL_SECONDS)
            except OSError as error:
                raise unreachable(plan.driver, error) from error
        if answer is None or answer.name != ANSWER:
            raise RemoteProtocolError(f"The driver did not answer {name!r}: {answer!r:.200}.")
        return answer


class DriverEndpoint:
    """The driver's end of `DriverCaller`; a context manager.

    `on_report`: called with the values of each report.
    `parts`: the part of the model of each task, if none has all of it.
    """

    def __init__(
        self,
        place: BindAddress,
        run: str,
        key: bytes,
        on_report: Callable[..., None],
        parts: Sequence[bytes] = (),
    ) -> None:
        self._on_report, self._parts = on_report, parts
        self._lock = threading.Lock()
        self._gate = HandshakeListener(place, run, key, self._serve)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._gate.__exit__(*exception)

    @property
    def address(self) -> ServerAddress:
        """Address to which tasks connect."""
        return self._gate.address

    def _serve(self, number: int, channel: ArrayChannel) -> None:
        with channel, contextlib.suppress(*BROKEN):
            call = channel.receive(STALL_SECONDS)
            if call is None:
                return
            if call.name == "part" and number < len(self._parts):
                archive = np.frombuffer(self._parts[number], np.uint8)
                channel.send(ANSWER, {}, [archive])
            elif call.name == "report" and number == MASTER:
                with self._lock:
                    self._on_report(**call.values)
                channel.send(ANSWER, {})


def run_group(
    prepared: TrainingJob,
    progress: RunProgress,
    count: int,
    engine: Callable[[WorkerPlan, DeviceGroup, DriverCaller], Any],
    module: Callable[[WorkerPlan, int, DriverCaller], Module],
    parts: Sequence[bytes] = (),
) -> keras.Model:
    """Run a group to its end; return the trained model.

    `parts`: archives of the parts of the model, the master's first, of which each task fetches its
    own; without them the tasks receive the whole model.
    """
    context, run, key = active_session().sparkContext, prepared.settings.run, new_key()
    records = prepared.description, prepared.history.params

    def on_report(lines: list[str], shares: dict[str, list[int]] | None) -> None:
        for line in lines:
            progress.note(line)
        for record in records:
            record.setdefault("devices", []).extend(lines)
            if shares:
                record["shares"] = shares
            elif shares is not None:
                record.pop("shares", None)

    place = _next_port(prepared.settings.place)
    with DriverEndpoint(place, run, key, on_report, parts) as gate:
        plan = GroupPlan(
            run=run,
            spec=prepared.spec,
            count=count,
            driver=gate.address,
            key=key,
            engine=engine,
            module=module,
        )
        work, model = partial(run_task, plan), b"" if parts else None
        try:
            return prepared.execute(progress, work=work, model=model, tasks=count)
        except StartTimeoutError as error:
            if lack := lack_of_slots(context, count):
                error.add_note(lack)
            raise


def run_task(
    plan: GroupPlan, worker: WorkerPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Train as the master, or compute for it, as a task of a barrier stage."""
    from pyspark import TaskContext

    # BarrierTaskContext.get() finds none in a Python process that Spark uses again (4.3).
    context: Any = TaskContext.get()
    number = context.partitionId()
    driver = DriverCaller(plan, number)
    if number == MASTER:
        yield from _lead(plan, worker, driver, batches, context)
    else:
        for _ in batches:
            pass
        master = context.allGather("")[MASTER]

        def build() -> Module:
            prepare_worker_process(plan.spec)
            return plan.module(worker, number, driver)

        serve(join(plan, number, master), build)


def _lead(
    plan: GroupPlan,
    worker: WorkerPlan,
    driver: DriverCaller,
    batches: Iterator[pa.RecordBatch],
    context: Any,
) -> Iterator[pa.RecordBatch]:
    def build(worker: WorkerPlan, _seat: int) -> KerasEngine:
        group.wait_for_all()
        return cast("KerasEngine", plan.engine(worker, group, driver))

    try:
        host = own_address(plan.driver.host, plan.driver.port)
    except OSError as error:
        raise unreachable(plan.driver, error) from error
    with DeviceGroup(plan.count, plan.spec.limits) as group:
        attempt = context.taskAttemptId()
        with listening(plan, attempt, BindAddress(host, host), group.admit) as invitation:
            context.allGather(invitation)
            yield from run_worker(worker, batches, build)
        driver.report([f"The devices moved {group.moved / 1e6:.3g} MB."])


@contextlib.contextmanager
def listening(
    plan: GroupPlan, attempt: int, place: BindAddress, admit: Callable[[int, ArrayChannel], None]
) -> Iterator[str]:
    """Let the devices of this attempt of the master in; yield what they need for `join`.

    A device of an earlier attempt, which lives for some seconds more, is refused.
    """
    run = f"{plan.run}, attempt {attempt}"
    with HandshakeListener(place, run, plan.key, admit) as gate:
        yield json.dumps({"run": run, "address": gate.address.to_json()})


def join(plan: GroupPlan, number: int, invitation: str) -> ArrayChannel:
    """Connect to the master as the device of this number."""
    master = json.loads(invitation)
    address = ServerAddress.from_json(master["address"])
    try:
        return connect(address, master["run"], plan.key, number, CONNECT_SECONDS)
    except ServerUnreachableError as error:
        raise ServerUnreachableError(
            f"Device {number} on {platform.node()} has no connection to its master at {address}: "
            f"{error.__cause__!r}. Executors must reach each other on any port."
        ) from error


def allow_waiting_operations(count: int) -> None:
    """Let this many operations wait at a time, if TensorFlow has not started yet.

    It has started in a process that Spark reuses; then fewer operations run at the same time.
    """
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_inter_op_parallelism_threads(count)


def _next_port(place: BindAddress) -> BindAddress:
    """Return the place of the driver's gate: the port after the server's, or a free one."""
    port = place.port and min(place.port + 1, 65535)
    return msgspec.structs.replace(place, port=port)

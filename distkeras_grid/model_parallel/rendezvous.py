"""How the tasks of a run find each other: their plan, the master's door, the devices' search.

They are ordinary tasks, not a barrier stage. In a barrier stage, Spark kills all tasks when one of
them dies. Here the others must go on, and Spark starts the dead one again by itself. The trainer
checks before the run that all tasks fit at once, and the master waits for all devices.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from distkeras_grid.errors import (
    GridError,
    RefusedError,
    ServerUnreachableError,
    StartTimeoutError,
)
from distkeras_grid.model_parallel.device import RequestHandler, serve
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.master_registry import MASTER, RegistryAddress
from distkeras_grid.model_parallel.messages import VOCABULARY, Report, Welcome
from distkeras_grid.model_parallel.schedule import TimedPass
from distkeras_grid.parameter_server.listener import HandshakeListener
from distkeras_grid.parameter_server.transports import Listener, own_address, unreachable
from distkeras_grid.spec import RunSpec

if TYPE_CHECKING:
    import pyarrow as pa

#: What a device's task yields when it has ended, as Spark DDL.
DEVICE_SCHEMA = "device int, attempt long, host string"
#: Seconds for a connection to the driver or to the master.
CONNECT_SECONDS = 30.0
#: Seconds between two questions of a device that waits for a master.
ASK_AGAIN = 0.2


@dataclass(frozen=True, kw_only=True)
class DevicesPlan:
    """What all tasks of a run must know; it travels in their closures."""

    guide: RegistryAddress  # How the tasks find each other
    count: int  # Number of devices, the master included
    spec: RunSpec  # The run


class DeviceRendezvous:
    """The master's door and its reports; a context manager."""

    def __init__(self, plan: DevicesPlan) -> None:
        self._plan = plan
        self._attempt = task_numbers()[1]
        self._resources = ExitStack()
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        # Spark starts the task of a failed attempt again, and the devices wait for that one.
        self._failed = kind is not None
        self._resources.close()

    def admit(self, members: DeviceGroup, welcome: Welcome) -> None:
        """Open the door, tell the driver where it is, and wait until all devices are there.

        `members`: takes the devices in. They are released when the meeting ends without an error.
        """
        guide, limit = self._plan.guide, self._plan.spec.limits.start_timeout
        try:
            host = own_address(guide.directory.host, guide.directory.port)
            listener = Listener(host, 0, host)
        except OSError as error:
            raise unreachable(guide.directory, error) from error
        self._resources.callback(self._part, members)
        gate = HandshakeListener(
            listener,
            guide.key_of,
            guide.run,
            VOCABULARY,
            welcome,
            lambda hello, channel: members.join(hello.seat, channel, hello.attempt),
            lambda hello: members.authorize(hello.seat, hello.attempt),
        )
        self._resources.enter_context(gate)
        with guide.ask(MASTER, self._attempt, CONNECT_SECONDS) as asking:
            asking.announce(gate.address)
        there = members.wait_for_all(limit)
        if there < self._plan.count:
            raise StartTimeoutError(
                f"The master has waited {limit:g} s, and {there} of {self._plan.count} devices are "
                f"there, the master included. Missing: {members.missing}. Look at their tasks, "
                "give the run more slots, use fewer devices, or allow more (start_timeout)."
            )

    def release(self, members: DeviceGroup) -> None:
        """Let all devices end, because the master trains without them."""
        # First the driver: a device that looks for the master now must not wait for it.
        with (
            contextlib.suppress(ServerUnreachableError),
            self._plan.guide.ask(MASTER, self._attempt, CONNECT_SECONDS) as asking,
        ):
            asking.release()
        members.close()

    @property
    def released(self) -> bool:
        """Whether an attempt before this one has released the devices."""
        with self._plan.guide.ask(MASTER, self._attempt, CONNECT_SECONDS) as asking:
            return asking.released()

    def report(
        self,
        lines: Sequence[str],
        shares: Mapping[str, tuple[int, ...]] | None = None,
        passes: Sequence[TimedPass] = (),
    ) -> None:
        """Tell the driver what the user should know; the training does not depend on it."""
        # If the driver has ended the run, its parameter server reports that, too.
        with (
            contextlib.suppress(ServerUnreachableError),
            self._plan.guide.ask(MASTER, self._attempt, CONNECT_SECONDS) as asking,
        ):
            copy = None if shares is None else dict(shares)
            asking.report(Report(lines=tuple(lines), shares=copy, passes=tuple(passes)))

    def _part(self, members: DeviceGroup) -> None:
        members.close(released=not self._failed)
        self.report([f"The devices moved {members.moved / 1e6:.3g} MB."])


def device_task(
    plan: DevicesPlan,
    batches: Iterator[pa.RecordBatch],
    prepare: Callable[[], None],
    computing: Callable[[Welcome, int], RequestHandler],
) -> Iterator[pa.RecordBatch]:
    """Compute for the master until it releases this device, or the run has ended."""
    import pyarrow as pa

    for _ in batches:
        pass
    partition, attempt = task_numbers()
    number = number_of(partition)
    prepare()
    _serve_masters(plan, number, attempt, computing)
    types = pa.schema([("device", pa.int32()), ("attempt", pa.int64()), ("host", pa.string())])
    row = {"device": number, "attempt": attempt, "host": platform.node()}
    yield pa.RecordBatch.from_pylist([row], schema=types)


def _serve_masters(
    plan: DevicesPlan,
    number: int,
    attempt: int,
    computing: Callable[[Welcome, int], RequestHandler],
) -> None:
    """Compute for the master; if it dies, for the one that Spark starts in its place."""
    limit = plan.spec.limits.start_timeout
    until = time.monotonic() + limit
    while time.monotonic() < until:
        try:
            with plan.guide.ask(number, attempt, CONNECT_SECONDS) as asking:
                if asking.released():
                    return
                address = asking.master()
        except ServerUnreachableError:
            # The driver has ended the run.
            return
        # The directory has the address of a dead master until another one announces itself. A
        # master that has lost this part refuses it, and another one will come.
        with contextlib.suppress(ServerUnreachableError, RefusedError):
            if address is not None:
                channel, welcome = plan.guide.connect(address, number, attempt, CONNECT_SECONDS)
                if serve(channel, computing(welcome, number)):
                    return
                until = time.monotonic() + limit
        time.sleep(ASK_AGAIN)
    raise StartTimeoutError(
        f"Device {number} has waited {limit:g} s for the master: look at the master's task, or "
        "allow more (start_timeout)."
    )


def number_of(partition: int) -> int:
    """Return the number of the device whose task has this partition; the master is none of them."""
    return MASTER + 1 + partition


def task_numbers() -> tuple[int, int]:
    """Return the partition and the attempt of the running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise GridError("This runs inside a Spark task only.")
    return context.partitionId(), context.taskAttemptId()


def allow_waiting_operations(count: int) -> None:
    """Let this many operations wait at a time, if TensorFlow has not started yet.

    It has started in a process that Spark reuses; then fewer operations run at the same time.
    """
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_inter_op_parallelism_threads(count)

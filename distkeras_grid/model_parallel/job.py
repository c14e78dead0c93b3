"""The driver's side of a run with devices: directory, the devices' job, and the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from distkeras_grid.errors import GridError, StartTimeoutError
from distkeras_grid.model_parallel.master_registry import MasterRegistry, RegistryAddress
from distkeras_grid.model_parallel.rendezvous import DEVICE_SCHEMA, DevicesPlan, number_of
from distkeras_grid.model_parallel.reports import Recorder
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.settings import BindAddress
from distkeras_grid.spark.session import active_session
from distkeras_grid.spark.worker_jobs import WorkerJobs

if TYPE_CHECKING:
    import keras
    import pyarrow as pa

    from distkeras_grid.trainers.preparation import TrainingJob
    from distkeras_grid.trainers.run_status import RunProgress

_Plan = TypeVar("_Plan", bound=DevicesPlan)


def run_devices(
    prepared: TrainingJob,
    progress: RunProgress,
    count: int,
    plan_of: Callable[[RegistryAddress], _Plan],
    master: Callable[..., Any],
    device: Callable[..., Any],
    parts: Sequence[bytes] = (),
) -> keras.Model:
    """Run the master as the run's only worker, and the other devices beside it."""
    spark, run, key = active_session(), prepared.settings.run, new_key()
    recorder = Recorder((prepared.description, prepared.history.params), progress.note)
    place, model = _next_port(prepared.settings.place), parts[0] if parts else None
    all_keys = partial(seat_key, key)
    with MasterRegistry(place, all_keys, run, recorder, dict(enumerate(parts))) as directory:
        work = partial(master, plan_of(RegistryAddress(run, all_keys, directory.address)))
        if count == 1:
            return prepared.execute(progress, work=work, model=model)
        frame = spark.range(0, count - 1, numPartitions=count - 1)
        launch = WorkerJobs(
            frame,
            partial(_with_key, device, plan_of(RegistryAddress(run, _no_key, directory.address))),
            DEVICE_SCHEMA,
            f"{run} devices",
            key_of=lambda partition: all_keys(number_of(partition)),
        )
        launch.start()
        try:
            return prepared.execute(progress, work=work, model=model)
        except StartTimeoutError as error:
            # The error that ended the job of a device is why the run could not start.
            raise (launch.error() or error) from error
        finally:
            launch.cancel()


def _no_key(number: int) -> bytes:
    """Stand for a key in the plan that the tasks of all devices share."""
    raise GridError(f"The key of device {number} is in the closure of its own task only.")


def _with_key(
    device: Callable[..., Any], plan: DevicesPlan, key: bytes, batches: Iterator[pa.RecordBatch]
) -> Any:
    """Run a device with the plan that all share and the key of its number."""
    return device(replace(plan, guide=replace(plan.guide, key_of=lambda _: key)), batches)


def _next_port(place: BindAddress) -> BindAddress:
    """Return the place of the directory: the port after the parameter server's, or a free one."""
    if not place.port:
        return place
    port = min(place.port + 1, 65535)
    return BindAddress(place.bind_host, place.advertised_host, port, place.port_retries)

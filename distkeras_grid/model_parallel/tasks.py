"""What Spark runs for `ConvolutionSplit`: the master's task, and that of each other device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from distkeras_grid.model_parallel.device import ConvolutionWorker
from distkeras_grid.model_parallel.devices import Devices
from distkeras_grid.model_parallel.messages import Welcome
from distkeras_grid.model_parallel.rendezvous import (
    DeviceRendezvous,
    DevicesPlan,
    allow_waiting_operations,
    device_task,
)
from distkeras_grid.model_parallel.reports import Reports
from distkeras_grid.model_parallel.time_model import Layers, SplitPlan
from distkeras_grid.worker.task import (
    WorkerPlan,
    engine_options,
    prepare_worker_process,
    run_worker,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from distkeras_grid.engine.base import ModelEngine


@dataclass(frozen=True, kw_only=True)
class SplitJob(DevicesPlan):
    """What the tasks of a divided model must know."""

    layers: Layers  # Which layers are divided


def run_master(
    plan: SplitJob, worker: WorkerPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Train the model as its only worker, with the help of the devices; see `run_worker`."""
    with DeviceRendezvous(plan) as meeting, Reports(meeting.report) as reports:
        yield from run_worker(worker, batches, partial(_build, plan, meeting, reports))


def run_device(plan: SplitJob, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute units for the master; see `device_task`."""
    yield from device_task(
        plan,
        batches,
        partial(prepare_worker_process, plan.spec),
        lambda welcome, _: ConvolutionWorker(welcome.layers),
    )


def _build(
    plan: SplitJob, meeting: DeviceRendezvous, reports: Reports, worker: WorkerPlan, _seat: int
) -> ModelEngine:
    """Load the model, wait for the devices, measure them, and divide what pays.

    Without a layer that pays, the devices end, and the model is trained as it is.
    """
    from distkeras_grid.engine.compile_settings import compile_model
    from distkeras_grid.engine.keras_model import model_from_bytes
    from distkeras_grid.engine.registry import build_engine, current_backend
    from distkeras_grid.model_parallel.convolution_finder import find_convolutions
    from distkeras_grid.model_parallel.engine import DividedEngine

    model = model_from_bytes(worker.model, worker.custom_objects)
    compile_model(model)
    options = engine_options(worker)
    if meeting.released:
        return build_engine(current_backend(), model, **options)
    convolutions = find_convolutions(model)
    if plan.layers not in ("auto", "all"):
        convolutions.chosen(tuple(plan.layers))
    layers = tuple(described for _, described in convolutions.layers.values())
    # Operations that wait for the last gradients must not occupy the thread of the others.
    allow_waiting_operations(plan.spec.limits.threads + len(layers))
    devices = Devices(
        layers,
        plan.count,
        plan.spec.batch_size,
        plan.layers,
        lambda line: reports.add([line]),
        start_seconds=plan.spec.limits.start_timeout,
    )
    meeting.admit(devices, Welcome(layers=layers))

    def planned(plan: SplitPlan) -> None:
        reports.add(plan.table(), plan.shares)
        if not plan.shares:
            meeting.release(devices)

    decided = devices.measure()
    if not decided.shares:
        planned(decided)
        return build_engine(current_backend(), model, **options)
    layers_of_plan = [convolutions.layers[name] for name in decided.shares]
    return DividedEngine(model, layers_of_plan, devices, planned, **options)

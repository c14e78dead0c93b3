"""What Spark runs for `Towers`: the task of master and first tower, and those of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.messages import Welcome
from distkeras_grid.model_parallel.rendezvous import (
    DeviceRendezvous,
    DevicesPlan,
    allow_waiting_operations,
    device_task,
)
from distkeras_grid.model_parallel.reports import Reports
from distkeras_grid.worker.task import (
    WorkerPlan,
    engine_options,
    prepare_worker_process,
    run_worker,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from distkeras_grid.engine.base import ModelEngine
    from distkeras_grid.model_parallel.device import RequestHandler


@dataclass(frozen=True, kw_only=True)
class TowersPlan(DevicesPlan):
    """What the tasks of a run of `Towers` must know."""

    towers: tuple[str, ...]  # Names of the towers in the whole model
    master: str  # Name of the master model in the whole model
    model: bytes = field(repr=False)  # The whole model, compiled, as a ``.keras`` archive
    custom_objects: Mapping[str, Any]  # The user's own classes and functions


def run_towers_master(
    plan: TowersPlan, worker: WorkerPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Train master and first tower as the run's only worker; see `run_worker`."""
    with DeviceRendezvous(plan) as meeting, Reports(meeting.report) as reports:
        yield from run_worker(worker, batches, partial(_build, plan, meeting, reports))


def run_tower(plan: TowersPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute a tower for the master; see `device_task`."""
    yield from device_task(
        plan,
        batches,
        partial(prepare_worker_process, plan.spec),
        lambda _, number: _tower(plan, number),
    )


def _tower(plan: TowersPlan, number: int) -> RequestHandler:
    import keras

    from distkeras_grid.engine.keras_model import model_from_bytes
    from distkeras_grid.model_parallel.tower import TowerComputer
    from distkeras_grid.model_parallel.tower_model import standalone_copy

    model = model_from_bytes(plan.model, plan.custom_objects)
    # Copies are built from descriptions, which contain only the names of the user's own classes.
    with keras.saving.custom_object_scope(dict(plan.custom_objects)):
        tower = standalone_copy(model.get_layer(plan.towers[number]))
    return TowerComputer(tower, keras.optimizers.serialize(model.optimizer), plan.custom_objects)


def _build(
    plan: TowersPlan, meeting: DeviceRendezvous, reports: Reports, worker: WorkerPlan, _seat: int
) -> ModelEngine:
    import keras

    from distkeras_grid.engine.compile_settings import compile_model
    from distkeras_grid.engine.keras_model import model_from_bytes
    from distkeras_grid.model_parallel.towers_engine import RemoteTowers, TowersEngine

    allow_waiting_operations(plan.spec.limits.threads + plan.count)
    model = model_from_bytes(worker.model, worker.custom_objects)
    compile_model(model)
    towers = [model.get_layer(name) for name in plan.towers]
    members = DeviceGroup(plan.count, lambda line: reports.add([line]))
    meeting.admit(members, Welcome())
    remote = RemoteTowers(members, plan.count - 1, plan.spec.limits)
    with keras.saving.custom_object_scope(dict(worker.custom_objects)):
        engine = TowersEngine(
            model, towers, model.get_layer(plan.master), remote, **engine_options(worker)
        )
    # It takes all other attributes from the engine that it holds.
    return cast("ModelEngine", engine)

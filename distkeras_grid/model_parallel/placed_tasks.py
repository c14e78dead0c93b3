"""What Spark runs for `PlacedLayers`: the task of the last stage, and those of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.messages import MOST_PASSES, Welcome
from distkeras_grid.model_parallel.pipeline_partition import FullModelLayout
from distkeras_grid.model_parallel.rendezvous import (
    CONNECT_SECONDS,
    DeviceRendezvous,
    DevicesPlan,
    device_task,
    task_numbers,
)
from distkeras_grid.model_parallel.reports import Reports
from distkeras_grid.model_parallel.schedule import TimedPass, bubble_share
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
class PlacedPlan(DevicesPlan):
    """What the tasks of a run of `PlacedLayers` must know; the stages themselves are not in it."""

    whole: FullModelLayout  # The whole model's vector
    micro_batches: int  # Parts of a batch
    # Configuration of the optimizer, as `keras.optimizers.serialize` returns it
    optimizer: dict[str, Any]
    custom_objects: Mapping[str, Any]  # The user's own classes and functions


def run_last_stage(
    plan: PlacedPlan, worker: WorkerPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Train the last stage, and lead the others, as the run's only worker; see `run_worker`.

    The model of `worker` is the last stage.
    """
    with DeviceRendezvous(plan) as meeting, Reports(meeting.report) as reports:
        yield from run_worker(worker, batches, partial(_build, plan, meeting, reports))


def run_stage(plan: PlacedPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute a stage for the master; see `device_task`."""
    yield from device_task(
        plan,
        batches,
        partial(prepare_worker_process, plan.spec),
        lambda _, number: _stage(plan, number),
    )


def _stage(plan: PlacedPlan, number: int) -> RequestHandler:
    from distkeras_grid.engine.keras_model import model_from_bytes
    from distkeras_grid.model_parallel.stage import StageComputer

    with plan.guide.ask(number, task_numbers()[1], CONNECT_SECONDS) as asking:
        archive = asking.model()
    stage = model_from_bytes(archive, plan.custom_objects)
    return StageComputer(stage, plan.optimizer, plan.custom_objects, first=number == 1)


def _build(
    plan: PlacedPlan, meeting: DeviceRendezvous, reports: Reports, worker: WorkerPlan, _seat: int
) -> ModelEngine:
    from distkeras_grid.engine.compile_settings import compile_model
    from distkeras_grid.engine.keras_model import model_from_bytes
    from distkeras_grid.model_parallel.pipeline import RemoteStages
    from distkeras_grid.model_parallel.placed_engine import PlacedEngine

    model = model_from_bytes(worker.model, worker.custom_objects)
    compile_model(model)
    remote = None
    if plan.count > 1:
        members = DeviceGroup(plan.count, lambda line: reports.add([line]))
        meeting.admit(members, Welcome())
        remote = RemoteStages(members, plan.count - 1, plan.spec.limits)

    def report_waits(passes: Sequence[TimedPass]) -> None:
        share = f"{bubble_share(passes):.0%}".replace("%", " %")
        line = f"Stages waited {share} of the time of a batch, the line included (measured)."
        reports.add([line], passes=passes[:MOST_PASSES])

    ((scaling,), options) = _scaling_apart(engine_options(worker))
    engine = PlacedEngine(
        model,
        plan.whole,
        remote,
        plan.micro_batches,
        scaling=scaling,
        on_passes=report_waits if remote is not None else None,
        **options,
    )
    return cast("ModelEngine", engine)


def _scaling_apart(options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the inputs' scaling, which is the first stage's, and the options without it."""
    return options["scaling"], {key: value for key, value in options.items() if key != "scaling"}

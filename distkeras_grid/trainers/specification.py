"""From a trainer's arguments, and what the checks have found, to the run as one value."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.keras_model import shared_section
from distkeras_grid.rules import compression_spec, spec_of
from distkeras_grid.spec import (
    AlgorithmSpec,
    DataSpec,
    ExchangeSpec,
    LayoutSpec,
    LimitsSpec,
    RunSpec,
    ScheduleSpec,
    plain,
)
from distkeras_grid.trainers.arguments import settled

if TYPE_CHECKING:
    from distkeras_grid.trainers.base import Trainer
    from distkeras_grid.trainers.checking import Checked
    from distkeras_grid.trainers.request import TrainRequest


def described_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trainer's own arguments as JSON values; what is no such value by its ``repr``.

    Examples
    --------
    >>> described_arguments({"alpha": 0.5, "layers": (1, 2), "how": int})
    {'alpha': 0.5, 'layers': (1, 2), 'how': "<class 'int'>"}
    """
    values = (bool, int, float, str, list, tuple, dict, type(None))
    return {
        name: value if isinstance(value, values) else repr(value)
        for name, value in plain(arguments).items()
    }


def source_of(data: Any) -> str:
    """Return where data come from: the path, or the digest of a DataFrame's plan.

    Two DataFrames of one plan over the same files have one digest, also in two sessions.

    Parameters
    ----------
    data : str or DataFrame
        What ``train`` was given.
    """
    if isinstance(data, str):
        return data
    plan = str(data._jdf.queryExecution().executedPlan().toString())
    # Spark numbers columns and steps anew in each session.
    told = re.sub(r"#\d+L?|plan_id=\d+", "", plan)
    return f"plan {hashlib.sha256(told.encode()).hexdigest()[:16]}"


def run_spec(
    trainer: Trainer, request: TrainRequest, checked: Checked, *, shows_center: bool
) -> RunSpec:
    """Return the run that a trainer was asked for.

    Parameters
    ----------
    trainer : Trainer
        Its arguments.
    request : TrainRequest
        Those of ``train``.
    checked : Checked
        What was found of model, data and cluster.
    shows_center : bool
        Whether the driver looks at the center at each epoch's end.
    """
    arguments = settled(trainer)
    conf = checked.spark.sparkContext.getConf()
    return RunSpec(
        algorithm=AlgorithmSpec(
            rule=spec_of(checked.rule),
            trainer=type(trainer).__name__,
            arguments=described_arguments(trainer.arguments()),
            quorum=arguments.quorum,
            optimizer_state=arguments.optimizer_state,
            statistics=arguments.statistics,
            own_start=bool(trainer.own_start),
            jit=trainer.jit,
            compile=checked.compile_settings.to_json(),
        ),
        layout=LayoutSpec(
            trainable_size=checked.layout.trainable_size,
            statistics_size=checked.layout.statistics_size,
            slots_size=checked.layout.slots_size,
            state=shared_section(checked.model).variables
            if checked.rule.traits.steps_on_workers
            else (),
        ),
        schedule=ScheduleSpec(
            rows=checked.rows,
            workers=checked.workers,
            batch_size=arguments.batch_size,
            window=checked.window.batches,
            epochs=arguments.epochs,
            epochs_per_window=arguments.epochs if checked.window.once else 1,
            shuffle=bool(request.shuffle),
            seed=request.seed,
            bootstrap=trainer.seats_hold == "bootstrap",
            snapshots_per_epoch=1 if shows_center else 0,
        ),
        exchange=ExchangeSpec(compression=compression_spec(arguments.compression)),
        data=DataSpec(
            source=source_of(request.data),
            features=tuple(
                {"name": field.name, **field.to_metadata()} for field in checked.columns.features
            ),
            labels=tuple(label.name for label in checked.columns.labels),
            sample_weight=checked.columns.weight,
            class_weight=None if request.class_weight is None else dict(request.class_weight),
            share=trainer.seats_hold,
            validation=None
            if request.validation_data is None
            else source_of(request.validation_data),
        ),
        limits=LimitsSpec(
            start_timeout=arguments.start_timeout,
            round_timeout=arguments.round_timeout,
            threads=int(conf.get("spark.task.cpus", "1") or 1),
            gpu_sharing=bool(trainer.gpu_sharing),
        ),
    )

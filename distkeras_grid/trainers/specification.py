"""From a trainer's arguments, and what the checks have found, to the run as one value."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
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
    Share,
    plain,
)
from distkeras_grid.trainers.arguments import settled

if TYPE_CHECKING:
    from distkeras_grid.engine.compile_settings import CompileSettings
    from distkeras_grid.feeding.schema import Field
    from distkeras_grid.rules import Rule
    from distkeras_grid.spark.dataframes import Columns
    from distkeras_grid.trainers.base import Trainer
    from distkeras_grid.trainers.defaults import WindowChoice
    from distkeras_grid.trainers.request import TrainRequest
    from distkeras_grid.weights import WeightLayout


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


def data_spec(request: TrainRequest, columns: Columns, share: Share) -> DataSpec:
    """Return what a run on Spark reads of the data.

    Parameters
    ----------
    request : TrainRequest
        What ``train`` was asked for.
    columns : Columns
        The columns that were found.
    share : {"partition", "full", "bootstrap"}
        Which rows a worker trains on.
    """
    held_out = request.validation_data
    return DataSpec(
        source=source_of(request.data),
        features=described_fields(columns.features),
        labels=tuple(label.name for label in columns.labels),
        sample_weight=columns.weight,
        class_weight=None if request.class_weight is None else dict(request.class_weight),
        share=share,
        validation=None if held_out is None else source_of(held_out),
    )


def described_fields(fields: Iterable[Field]) -> tuple[dict[str, Any], ...]:
    """Return the feature columns as a run's data section has them."""
    return tuple({"name": field.name, **field.to_metadata()} for field in fields)


def run_spec(
    trainer: Trainer,
    rule: Rule,
    compile_settings: CompileSettings,
    layout: WeightLayout,
    schedule: Mapping[str, Any],
    window: WindowChoice,
    data: DataSpec,
    *,
    state: StateSection | None = None,
    threads: int = 1,
) -> RunSpec:
    """Return the run that a trainer was asked for.

    Parameters
    ----------
    trainer : Trainer
        Its arguments.
    rule : Rule
        The update rule for the run's workers.
    compile_settings : CompileSettings
        How the model is compiled.
    layout : WeightLayout
        Layout of the vectors.
    schedule : mapping
        The fields of `ScheduleSpec` that are no arguments of the trainer.
    window : WindowChoice
        Batches between two exchanges.
    data : DataSpec
        What is read of the data.
    threads : int, default 1
        Cores of a worker.
    """
    arguments = settled(trainer)
    return RunSpec(
        algorithm=AlgorithmSpec(
            rule=spec_of(rule),
            trainer=type(trainer).__name__,
            arguments=described_arguments(trainer.arguments()),
            quorum=arguments.quorum,
            optimizer_state=arguments.optimizer_state,
            statistics=arguments.statistics,
            own_start=bool(trainer.own_start),
            jit=trainer.jit,
            compile=compile_settings.to_json(),
        ),
        layout=LayoutSpec.of(layout, state),
        schedule=ScheduleSpec(
            batch_size=arguments.batch_size,
            window=window.batches,
            epochs=arguments.epochs,
            epochs_per_window=arguments.epochs if window.once else 1,
            bootstrap=data.share == "bootstrap",
            **schedule,
        ),
        exchange=ExchangeSpec(compression=compression_spec(arguments.compression)),
        data=data,
        limits=LimitsSpec(
            start_timeout=arguments.start_timeout,
            round_timeout=arguments.round_timeout,
            threads=threads,
            gpu_sharing=bool(trainer.gpu_sharing),
        ),
    )

"""The specification of a run, from a trainer's parameters and what model, data and cluster are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from distkeras_grid.frozen_struct import plain
from distkeras_grid.local_sets.sets import LocalSets
from distkeras_grid.rules import compression_spec, spec_of
from distkeras_grid.spark.internals import plan_of
from distkeras_grid.spec import (
    AlgorithmSpec,
    DataSpec,
    ExchangeSpec,
    LayoutSpec,
    LimitsSpec,
    Outliers,
    RunSpec,
    ScheduleSpec,
)

if TYPE_CHECKING:
    from distkeras_grid.feeding.schema import Field
    from distkeras_grid.rules import Rule
    from distkeras_grid.spark.columns import Columns
    from distkeras_grid.trainers.config import TrainerConfig, TrainingData
    from distkeras_grid.trainers.defaults import CommunicationWindow


def build_spec(
    config: TrainerConfig,
    rule: Rule,
    window: CommunicationWindow,
    layout: LayoutSpec,
    data: DataSpec,
    schedule: Mapping[str, Any],
    **fields: Any,
) -> RunSpec:
    """Return the specification of a run.

    `schedule`: rows, workers, shuffling and seed. `fields`: others, which model and cluster say.
    """
    spec = RunSpec(
        algorithm=AlgorithmSpec(
            rule=spec_of(rule),
            trainer=config.trainer_name,
            arguments=described_arguments(config.arguments()),
            own_start=config.own_start,
        ),
        layout=layout,
        schedule=ScheduleSpec(
            window=window.batches,
            epochs_per_window=config.num_epoch if window.once else 1,
            bootstrap=config.share == "bootstrap",
            **schedule,
        ),
        exchange=ExchangeSpec(
            compression=compression_spec(config.exchange_compression),
            outliers=config.validate if isinstance(config.validate, Outliers) else None,
        ),
        data=msgspec.structs.replace(data, share=config.share),
        limits=LimitsSpec(),
    )
    return spec.change(**config.spec_fields(), **fields)


def described_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trainer's own arguments as JSON values; other values become their ``repr``.

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


def described_fields(fields: Iterable[Field]) -> tuple[dict[str, Any], ...]:
    """Return columns in the form of a run's data section."""
    return tuple({"name": field.name, **field.to_metadata()} for field in fields)


def described_labels(labels: Iterable[Field | None]) -> tuple[dict[str, Any] | None, ...]:
    """Return label columns in the form of a run's data section."""
    return tuple(None if each is None else described_fields([each])[0] for each in labels)


def data_spec(
    data: TrainingData, columns: Columns, class_weight: dict[int, float] | None = None
) -> DataSpec:
    """Return the data section of a run on Spark."""
    held_out = data.validation_data
    return DataSpec(
        source=source_of(data.data),
        features=described_fields(columns.features),
        labels=described_labels(columns.labels),
        sample_weight=columns.weight,
        class_weight=class_weight,
        validation=None if held_out is None else source_of(held_out),
        local=data.data.spec if isinstance(data.data, LocalSets) else None,
    )


def source_of(data: Any) -> str:
    """Return where data come from: the path, or the digest of a DataFrame's plan.

    Two DataFrames with the same plan over the same files have the same digest, also in two
    sessions.
    """
    if isinstance(data, LocalSets):
        data = data.data
    if isinstance(data, str):
        return data
    # Spark gives columns and steps other numbers in each session.
    stable = re.sub(r"#\d+L?|plan_id=\d+", "", plan_of(data))
    return f"plan {hashlib.sha256(stable.encode()).hexdigest()[:16]}"

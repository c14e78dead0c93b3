"""Data and arguments in a run's specification, as JSON values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from distkeras_grid.local_sets.sets import LocalSets
from distkeras_grid.spec import DataSpec, plain
from distkeras_grid.stores.dataset_index import DatasetIndex

if TYPE_CHECKING:
    from distkeras_grid.feeding.schema import Field
    from distkeras_grid.spark.columns import Columns
    from distkeras_grid.trainers.run_request import DataRequest


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
    request: DataRequest, columns: Columns, class_weight: dict[int, float] | None = None
) -> DataSpec:
    """Return the data section of a run on Spark."""
    held_out = request.validation_data
    return DataSpec(
        source=source_of(request.data),
        features=described_fields(columns.features),
        labels=described_labels(columns.labels),
        sample_weight=columns.weight,
        class_weight=class_weight,
        validation=None if held_out is None else source_of(held_out),
        local=request.data.spec if isinstance(request.data, LocalSets) else None,
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
    if isinstance(data, DatasetIndex):
        return f"catalogue {data.digest}"
    plan = str(data._jdf.queryExecution().executedPlan().toString())
    # Spark gives columns and steps other numbers in each session.
    told = re.sub(r"#\d+L?|plan_id=\d+", "", plan)
    return f"plan {hashlib.sha256(told.encode()).hexdigest()[:16]}"

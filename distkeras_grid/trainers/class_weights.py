"""Weights of classes, by number: given, or balanced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from distkeras_grid.errors import ConfigurationError, LabelError
from distkeras_grid.feeding.shapes import outputs_of
from distkeras_grid.spark.columns import Columns, value_expression
from distkeras_grid.spark.row_partitioner import DataSummary
from distkeras_grid.trainers.arguments import BALANCED, ClassWeight
from distkeras_grid.trainers.labels import check_classes

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame

    from distkeras_grid.feeding.schema import Field


def settle_class_weight(
    asked: ClassWeight,
    columns: Columns,
    summary: DataSummary,
    model: keras.Model,
    count: Callable[[], Mapping[int, int]],
) -> dict[int, float] | None:
    """Return the weights of classes, None if none are asked for."""
    if asked is None:
        return None
    described = columns.labelled
    if len(described) != 1 or len(described[0].shape) > 1:
        raise ConfigurationError(
            "class_weight needs one label that names a class in each row. Received: "
            f"{', '.join(f'{each.name!r} of shape {each.shape}' for each in described) or 'none'}."
        )
    if asked == BALANCED:
        return balanced_weights(count())
    check_classes(asked, columns, summary, outputs_of(model))
    return asked


def balanced_weights(counts: Mapping[int, int]) -> dict[int, float]:
    """Return weights with which each class counts as much as any other, and a row 1 in the mean.

    They are those of scikit-learn's ``class_weight="balanced"``: rows / (classes * rows of the
    class).
    """
    rows = sum(counts.values())
    return {number: rows / (len(counts) * n) for number, n in sorted(counts.items())}


def count_classes(frame: DataFrame, label: Field) -> dict[int, int]:
    """Return how many rows each class has, in one aggregate job."""
    from pyspark.sql import functions as F

    value = value_expression(frame, label)
    if label.size > 1:
        number = F.array_position(value, F.array_max(value)) - 1
    else:
        single = value if not label.shape else F.element_at(value, 1)
        number = F.when(single == F.floor(single), single)
    rows = frame.groupBy(number.cast("long").alias("number")).count().collect()
    counts = {row["number"]: row["count"] for row in rows}
    if None in counts:
        raise LabelError(
            f"class_weight={BALANCED!r} needs labels that are numbers of classes. Received: "
            f"{counts[None]} rows of column {label.name!r} with other numbers. Use "
            "sample_weight_col."
        )
    return counts

"""Weights of classes as the run takes them, by number: given by number or name, or balanced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import ConfigurationError, LabelError
from distkeras_grid.feeding.shapes import outputs_of
from distkeras_grid.feeding.source import classes_of
from distkeras_grid.spark.columns import Columns, value_expression
from distkeras_grid.spark.row_partitioner import DataSummary
from distkeras_grid.trainers.arguments import BALANCED, ClassWeight
from distkeras_grid.trainers.labels import check_classes

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame

    from distkeras_grid.feeding.schema import Field


Numbered: TypeAlias = dict[int, float] | Literal["balanced"] | None


def number_classes(asked: ClassWeight, columns: Columns) -> Numbered:
    """Return weights by the numbers of classes, where some are given by names."""
    if asked is None or asked == BALANCED:
        return asked
    names = next((field.classes for field in columns.features if field.classes), ())
    return by_numbers(asked, names)


def settle_class_weight(
    asked: Numbered,
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


def by_numbers(weights: Mapping[int | str, float], names: Sequence[str]) -> dict[int, float]:
    """Return weights by the numbers of classes, where some are given by names."""
    numbered: dict[int, float] = {}
    for key, weight in weights.items():
        if isinstance(key, str) and key not in names:
            known = f"Its classes: {', '.join(names)}." if names else "Name classes by numbers."
            raise ConfigurationError(
                f"class_weight names class {key!r}, which the metadata of the feature column do "
                f"not have. {known} Received: {dict(weights)!r}."
            )
        number = names.index(key) if isinstance(key, str) else key
        if number in numbered:
            raise ConfigurationError(
                f"class_weight gives class {number} by its number and by its name. Received: "
                f"{dict(weights)!r}. Give one."
            )
        numbered[number] = weight
    return numbered


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
        raise _no_classes(label.name, counts[None])
    return counts


def count_in_array(name: str, labels: NDArray[Any]) -> dict[int, int]:
    """Return how many labels each class has.

    `labels`: shape ``(rows,)``, ``(rows, 1)`` or, one-hot, ``(rows, k)``.
    """
    single = labels.ndim == 1 or labels.shape[-1] == 1
    broken = int((labels != np.floor(labels)).sum()) if single else 0
    if broken:
        raise _no_classes(name, broken)
    numbers, counts = np.unique(classes_of(labels[np.newaxis]), return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def _no_classes(name: str, rows: int) -> LabelError:
    return LabelError(
        f"class_weight={BALANCED!r} needs labels that are numbers of classes. Received: {rows} "
        f"rows of column {name!r} with other numbers. Use sample_weight_col."
    )

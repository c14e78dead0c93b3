"""The figures of predicted numbers by row, and by unit: a source image, a specimen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import ConfigurationError, EmptyDataError
from distkeras_grid.evaluation.classification import ROW, ResamplingUnits, units_of
from distkeras_grid.evaluation.intervals import Figure, Numbers, with_interval

#: The figures, as Spark ML names them.
METRICS = ("mae", "rmse", "r2")


@dataclass(frozen=True)
class ErrorMoments:
    """What the rows of one unit say; all numbers are means over them."""

    units: tuple[str | None, ...]  # The units of the rows, the smallest first
    count: int  # Number of rows
    label: float
    prediction: float
    variance: float  # That of the labels, divided by their number
    absolute: float  # absolute and squared: The absolute and the squared error
    squared: float


@dataclass(frozen=True)
class RegressionLevel:
    """The figures of rows, or of the units of one column."""

    name: str  # ``row``, or the column that names the units
    count: int  # Number of rows or units
    # mae and rmse: The mean absolute error, and the root of the mean squared error, in units of the
    # label
    mae: Figure
    rmse: Figure
    # The coefficient of determination: 1 less the share of the labels' variance that is left. It is
    # 0 if the predictions are as good as the labels' mean, and negative if they are worse.
    r2: Figure

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON types."""
        metrics = {name: getattr(self, name).to_json() for name in METRICS}
        return {"name": self.name, "count": self.count, **metrics}


@dataclass(frozen=True)
class RegressionEvaluation:
    """Figures of predicted numbers at each level, with intervals.

    ``print(evaluation)`` shows them as a table.
    """

    levels: tuple[RegressionLevel, ...]  # The rows first
    clusters: int  # How many clusters the intervals are computed from
    cluster: str  # What a cluster is: the name of the last column, or ``row``

    def level(self, name: str) -> RegressionLevel:
        """Return one level."""
        for each in self.levels:
            if each.name == name:
                return each
        raise ConfigurationError(
            f"The evaluation has no level {name!r}. Its levels: "
            f"{', '.join(each.name for each in self.levels)}. Name the column in `by`."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON types."""
        first = self.levels[0]
        return {
            **{name: getattr(first, name).value for name in METRICS},
            "rows": first.count,
            "levels": [each.to_json() for each in self.levels],
            "intervals": {"level": 0.95, "clusters": self.clusters, "cluster": self.cluster},
        }

    def __str__(self) -> str:
        from distkeras_grid.evaluation.text import regression_as_text

        return regression_as_text(self)


def evaluate_moments(moments: Sequence[ErrorMoments], by: Sequence[str]) -> RegressionEvaluation:
    """Return the figures of predicted numbers.

    `moments`: those of the smallest units, or, without `by`, of parts of the rows.
    `by`: the names of the units, the smallest first. Each unit must lie in one unit of the next
    name; the last ones are the clusters of the intervals. Without any, rows are independent.
    """
    if not moments:
        raise EmptyDataError("There are no rows to evaluate. Check the path and the filter.")
    # The order must not depend on Spark's.
    moments = sorted(moments, key=lambda each: tuple(unit or "" for unit in each.units))
    levels = units_of([each.units for each in moments], by)
    names = [str(number) for number in range(len(moments))]
    clusters = levels[-1] if levels else ResamplingUnits(names, np.arange(len(moments)))
    results = [_level(ROW, moments, clusters)]
    for name, units in zip(by, levels, strict=True):
        _, first = np.unique(units.of, return_index=True)
        lying = ResamplingUnits(clusters.names, clusters.of[first])
        results.append(_level(name, _combined(moments, units), lying))
    rows = results[0].count
    return RegressionEvaluation(
        tuple(results), len(clusters.names) if by else rows, by[-1] if by else ROW
    )


def _combined(moments: Sequence[ErrorMoments], units: ResamplingUnits) -> list[ErrorMoments]:
    """Return each unit as one row: the mean label and the mean prediction of its rows."""
    count = np.array([each.count for each in moments], np.float64)
    rows = np.bincount(units.of, count)
    label, prediction = (
        np.bincount(units.of, count * [getattr(each, name) for each in moments]) / rows
        for name in ("label", "prediction")
    )
    return [
        ErrorMoments((), 1, true, output, 0.0, abs(output - true), (output - true) ** 2)
        for true, output in zip(label.tolist(), prediction.tolist(), strict=True)
    ]


def _level(
    name: str, moments: Sequence[ErrorMoments], clusters: ResamplingUnits
) -> RegressionLevel:
    sums = {
        key: np.array([getattr(each, key) for each in moments], np.float64)
        for key in ("count", "label", "variance", "absolute", "squared")
    }
    count = sums["count"]
    # From the mean of all labels, or large labels would lose the digits in which they differ.
    label = sums["label"] - count @ sums["label"] / count.sum()
    each = np.stack(
        [
            np.bincount(clusters.of, values, len(clusters.names))
            for values in (
                count,
                count * label,
                count * (sums["variance"] + label**2),
                count * sums["absolute"],
                count * sums["squared"],
            )
        ]
    )
    total = each.sum(axis=1, keepdims=True)
    whole, without = _figures(total), _figures(total - each)
    ones = np.ones(len(clusters.names), np.int64)
    mae, rmse, left = (
        with_interval(float(whole[key][0]), without[key], ones, len(ones), "positive")
        for key in ("mae", "rmse", "left")
    )
    return RegressionLevel(name, int(count.sum()), mae, rmse, _less_than_one(left))


def _figures(sums: Numbers) -> dict[str, npt.NDArray[np.float64]]:
    """Return the figures of sums over rows: their number, labels, squares, errors, squares."""
    count, label, square, absolute, squared = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        varies = square - label**2 / count
        figures = {
            "mae": absolute / count,
            "rmse": np.sqrt(np.maximum(squared, 0) / count),
            "left": np.where(varies > 1e-12 * square, squared / varies, np.nan),
        }
    return {name: np.where(count > 0, values, np.nan) for name, values in figures.items()}


def _less_than_one(left: Figure) -> Figure:
    """Return 1 less a figure: its interval ends the other way round."""
    value, low, high = (None if x is None else 1 - x for x in (left.value, left.high, left.low))
    return replace(left, value=value, low=low, high=high)

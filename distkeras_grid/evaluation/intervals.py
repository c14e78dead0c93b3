"""Figures with 95 % intervals, from what they are without each group.

Rows of one source are alike, so a source counts as one observation. Each figure is computed once
more without each group of rows, whatever classes it has; how far the results differ tells the
error of the figure (the jackknife; B. Efron and C. Stein, The Jackknife Estimate of Variance,
Annals of Statistics 9, 1981). The interval is that of Student's t with as many degrees of freedom
as there are groups that the figure depends on, less one. It is computed from the logarithm of a
positive figure, and from the log-odds of a share, so that it ends where the figure does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Scale = Literal["share", "positive"]

LEVEL = 0.95
# No logarithm of a number is larger.
FARTHEST = 700.0
# Quantile of the normal distribution at 97.5 %.
_Z = 1.959963984540054


@dataclass(frozen=True)
class Figure:
    """A figure and its 95 % interval."""

    # None where it is not defined, such as the precision of a class that was never predicted
    value: float | None
    # low and high: Ends of the interval. None if the figure depends on one group alone, or is the
    # same without any of them, which says nothing about the error.
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """Return the figure and its interval.

        Examples
        --------
        >>> print(Figure(0.9, 0.85, 0.95), Figure(1.0), Figure(None), sep="; ")
        0.900 (0.850 to 0.950); 1.000 (no interval); not defined
        """
        return self.text(".3f")

    def text(self, form: str) -> str:
        """Return the figure and its interval, each formatted by `form`.

        Examples
        --------
        >>> Figure(1234.567, 1000.0, 1500.0).text(".4g")
        '1235 (1000 to 1500)'
        """
        if self.value is None:
            return "not defined"
        if self.low is None or self.high is None:
            return f"{self.value:{form}} (no interval)"
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"

    def to_json(self) -> dict[str, float | None]:
        """Return the figure as JSON types."""
        return {"value": self.value, "low": self.low, "high": self.high}


def with_interval(
    value: float, without: Numbers, counts: npt.NDArray[np.int64], groups: int, scale: Scale
) -> Figure:
    """Return a figure with its interval.

    `without`: the figure without one group of each kind; NaN where it is not defined then; shape
    (kinds,).
    `counts`: number of groups of each kind; 1 for each if all groups differ; shape (kinds,).

    Examples
    --------
    Ten groups of equal size, in five of which all is right:

    >>> print(with_interval(0.5, np.array([4 / 9, 5 / 9]), np.array([5, 5]), 10, "share"))
    0.500 (0.181 to 0.819)
    """
    if math.isnan(value):
        return Figure(None)
    known = ~np.isnan(without)
    without, counts = without[known], counts[known]
    number = int(counts.sum())
    slope = value * (1 - value) if scale == "share" else value
    if groups < 2 or number < 2 or slope <= 0:
        return Figure(value)
    mean = float(counts @ without) / number
    error = math.sqrt((number - 1) / number * float(counts @ (without - mean) ** 2))
    if error < 1e-12 * value:
        return Figure(value)
    # Two groups that differ widely tell nothing: the interval is all that a figure can be.
    far = min(student_t(groups - 1) * error / slope, FARTHEST)
    if scale == "positive":
        return Figure(value, value * math.exp(-far), value * math.exp(far))
    odds = math.log(value / (1 - value))
    return Figure(value, *(0.5 + 0.5 * math.tanh((odds + side) / 2) for side in (-far, far)))


def student_t(freedom: int) -> float:
    """Return the quantile of Student's t at 97.5 %.

    From 3 degrees of freedom by the expansion of M. Abramowitz and I. A. Stegun, Handbook of
    Mathematical Functions, 26.7.5, which is right to 0.2 %.

    Examples
    --------
    >>> [round(student_t(freedom), 2) for freedom in (1, 2, 3, 10, 1000)]
    [12.71, 4.3, 3.18, 2.23, 1.96]
    """
    if freedom < 3:
        return (math.tan(math.pi * LEVEL / 2), LEVEL * math.sqrt(2 / (1 - LEVEL**2)))[freedom - 1]
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    powers = (float(freedom) ** place for place in range(1, len(terms) + 1))
    return z + sum(term / power for term, power in zip(terms, powers, strict=True))


@dataclass(frozen=True)
class Tallies:
    """Counts for each group, from which the figures of predictions are computed."""

    # right and true and predicted: How often each class was predicted correctly, was the label, and
    # was predicted; shape (groups, classes)
    right: Numbers
    true: Numbers
    predicted: Numbers

    @classmethod
    def of(cls, confusions: npt.NDArray[np.int64]) -> Tallies:
        """Build tallies from confusion matrices, shape (groups, classes, classes)."""
        matrices = confusions.astype(np.float64)
        right = np.diagonal(matrices, axis1=1, axis2=2)
        return cls(right, matrices.sum(axis=2), matrices.sum(axis=1))


def figures(tallies: Tallies) -> dict[str, Numbers]:
    """Return the figures of each set of predictions; NaN where one is not defined.

    `tallies`: tallies of n sets, shape (n, classes).

    Examples
    --------
    >>> confusion = np.array([[[8, 2], [4, 6]]])
    >>> {name: found.round(2).tolist() for name, found in figures(Tallies.of(confusion)).items()}
    {'accuracy': [[0.7]], 'balanced': [[0.7]], 'precision': [[0.67, 0.75]], \
'recall': [[0.8, 0.6]], 'f1': [[0.73, 0.67]]}
    """
    right, true, predicted = tallies.right, tallies.true, tallies.predicted
    recall = _ratio(right, true)
    occurring = (true > 0).sum(axis=1, keepdims=True)
    return {
        "accuracy": _ratio(right.sum(axis=1, keepdims=True), true.sum(axis=1, keepdims=True)),
        "balanced": _ratio(np.nansum(recall, axis=1, keepdims=True), occurring),
        "precision": _ratio(right, predicted),
        "recall": recall,
        "f1": _ratio(2 * right, true + predicted),
    }


def with_intervals(
    confusions: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> dict[str, list[Figure]]:
    """Return the figures of all groups together, with their intervals.

    `confusions`: the confusion matrix of a group of each kind; none is empty; shape (kinds,
    classes, classes).
    `counts`: number of groups of each kind; 1 for each if all groups differ; shape (kinds,).
    """
    each = Tallies.of(confusions)
    total = Tallies(
        *(counts[np.newaxis] @ part for part in (each.right, each.true, each.predicted))
    )
    whole = figures(total)
    without = figures(
        Tallies(total.right - each.right, total.true - each.true, total.predicted - each.predicted)
    )
    named, labelled = counts @ (each.predicted > 0), counts @ (each.true > 0)
    groups: dict[str, Sequence[int]] = {
        "accuracy": [int(counts.sum())],
        # The mean of the recalls hangs on the class with the fewest groups.
        "balanced": [int(labelled[labelled > 0].min())],
        "precision": named.tolist(),
        "recall": labelled.tolist(),
        "f1": (counts @ ((each.true + each.predicted) > 0)).tolist(),
    }
    return {
        name: [
            with_interval(
                float(value), without[name][:, place], counts, groups[name][place], "share"
            )
            for place, value in enumerate(whole[name][0])
        ]
        for name in whole
    }


def _ratio(part: Any, whole: Any) -> Numbers:
    out = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=out, where=np.asarray(whole) > 0)
    return out

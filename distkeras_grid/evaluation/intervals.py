"""The 95 % interval of a share of right predictions, from what it is without each group.

Rows of one source are alike, so a source counts as one observation. The share is computed once
more without each group of rows; how far the results differ tells its error (the jackknife; B. Efron
and C. Stein, The Jackknife Estimate of Variance, Annals of Statistics 9, 1981). The interval is
that of Student's t with as many degrees of freedom as there are groups, less one. It is computed
from the log-odds, so that it ends where a share does.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
# No logarithm of a number is larger.
FARTHEST = 700.0
# Quantile of the normal distribution at 97.5 %.
_Z = 1.959963984540054


@dataclass(frozen=True)
class Figure:
    """A share and its 95 % interval."""

    value: float
    # low and high: Ends of the interval. None if there is one group, or the share is the same
    # without any of them, which says nothing about the error.
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """Return the share and its interval.

        Examples
        --------
        >>> print(Figure(0.9, 0.85, 0.95), Figure(1.0), sep="; ")
        0.900 (0.850 to 0.950); 1.000 (no interval)
        """
        if self.low is None or self.high is None:
            return f"{self.value:.3f} (no interval)"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    def to_json(self) -> dict[str, float | None]:
        """Return the figure as JSON types."""
        return asdict(self)


def share_of_right(
    right: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Figure:
    """Return the share of right rows, with its interval.

    `right, rows`: numbers of rows of a group of each kind; no group is empty; shape (kinds,).
    `counts`: number of groups of each kind; 1 for each if all groups differ; shape (kinds,).

    Examples
    --------
    Ten groups of equal size, in five of which all is right:

    >>> print(share_of_right(np.array([0, 9]), np.array([9, 9]), np.array([5, 5])))
    0.500 (0.181 to 0.819)
    """
    groups, total_right, total = int(counts.sum()), int(counts @ right), int(counts @ rows)
    value = total_right / total
    if groups < 2 or value in (0, 1):
        return Figure(value)
    without = (total_right - right) / (total - rows)
    mean = float(counts @ without) / groups
    error = math.sqrt((groups - 1) / groups * float(counts @ (without - mean) ** 2))
    if error < 1e-12 * value:
        return Figure(value)
    # Two groups that differ widely tell nothing: the interval is all that a share can be.
    far = min(student_t(groups - 1) * error / (value * (1 - value)), FARTHEST)
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

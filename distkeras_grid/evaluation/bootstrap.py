"""Figures of predictions, with intervals by the cluster bootstrap.

Rows of one source are alike, so a source counts as one observation: whole clusters are drawn with
replacement, as many as there are, and each figure is computed from all rows of the drawn ones. They
are drawn within each class, because splits are made within each class, too; otherwise a class with
few clusters would be missing in some resamples. The interval lies between the 2.5 % and the 97.5 %
quantile of the resampled figures (the percentile method; A. C. Davison and D. V. Hinkley, Bootstrap
Methods and their Application, 1997, sections 3.2, 3.8 and 5.3). With few clusters these intervals
are too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import ConfigurationError

Numbers = npt.NDArray[np.float64]

# B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993, section 14.3: percentiles need
# about a thousand.
RESAMPLES = 1000
LEVEL = 0.95
# The most numbers that one block of resamples holds.
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Figure:
    """A figure and its 95 % interval.

    Parameters
    ----------
    value : float or None
        None where it is not defined, such as the precision of a class that was never predicted.
    low, high : float or None
        Ends of the interval. None if all resamples gave the same value, which says nothing about
        the error.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """Return the figure and its interval.

        Examples
        --------
        >>> print(Figure(0.9, 0.85, 0.95), Figure(1.0), Figure(None), sep="; ")
        0.900 (0.850 to 0.950); 1.000 (no interval); not defined
        """
        if self.value is None:
            return "not defined"
        if self.low is None or self.high is None:
            return f"{self.value:.3f} (no interval)"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    def to_json(self) -> dict[str, float | None]:
        """Return the figure as JSON types."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Tallies:
    """Counts for each cluster, from which the figures of predictions are computed.

    Parameters
    ----------
    right, true, predicted : ndarray of float64, shape (clusters, classes)
        How often each class was predicted correctly, was the label, and was predicted.
    """

    right: Numbers
    true: Numbers
    predicted: Numbers

    @classmethod
    def of(cls, confusions: npt.NDArray[np.int64]) -> Tallies:
        """Build tallies from confusion matrices, shape (clusters, classes, classes)."""
        matrices = confusions.astype(np.float64)
        right = np.diagonal(matrices, axis1=1, axis2=2)
        return cls(right, matrices.sum(axis=2), matrices.sum(axis=1))

    def weighed(self, weights: Numbers) -> Tallies:
        """Return the sums over clusters, for each row of `weights`, shape (n, clusters)."""
        return Tallies(weights @ self.right, weights @ self.true, weights @ self.predicted)


def figures(tallies: Tallies) -> dict[str, Numbers]:
    """Return the figures of each set of predictions; NaN where one is not defined.

    Parameters
    ----------
    tallies : Tallies
        Tallies of n sets, shape (n, classes).

    Returns
    -------
    dict
        ``accuracy`` and ``balanced`` of shape (n,): the share of correct predictions, and the mean
        recall of the classes that occur. ``precision``, ``recall`` and ``f1``, of shape
        (n, classes).

    Examples
    --------
    >>> confusion = np.array([[[8, 2], [4, 6]]])
    >>> {name: found.round(2).tolist() for name, found in figures(Tallies.of(confusion)).items()}
    {'accuracy': [0.7], 'balanced': [0.7], 'precision': [[0.67, 0.75]], 'recall': [[0.8, 0.6]], \
'f1': [[0.73, 0.67]]}
    """
    right, true, predicted = tallies.right, tallies.true, tallies.predicted
    recall = _ratio(right, true)
    occurring = (true > 0).sum(axis=1)
    return {
        "accuracy": _ratio(right.sum(axis=1), true.sum(axis=1)),
        "balanced": _ratio(np.nansum(recall, axis=1), occurring),
        "precision": _ratio(right, predicted),
        "recall": recall,
        "f1": _ratio(2 * right, true + predicted),
    }


def with_intervals(
    confusions: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], resamples: int, seed: int
) -> dict[str, list[Figure]]:
    """Return the figures of all clusters together, with their intervals.

    Parameters
    ----------
    confusions : ndarray of int64, shape (kinds, classes, classes)
        The confusion matrix of a cluster of each kind.
    counts : ndarray of int64, shape (kinds,)
        Number of clusters of each kind; 1 for each if all clusters differ.
    resamples, seed : int
        Number of resamples, and seed. The same values always give the same intervals.

    Returns
    -------
    dict of str to list of Figure
        Figures by the names that `figures` uses: one for each class, or one in all.

    Raises
    ------
    ConfigurationError
        If `resamples` or `seed` is not valid; see `check_resampling`.
    """
    check_resampling(resamples, seed)
    tallies = Tallies.of(confusions)
    whole = figures(tallies.weighed(counts[np.newaxis].astype(np.float64)))
    drawn = _resampled(tallies, counts, resamples, seed)
    return {name: _figures(whole[name], drawn[name]) for name in whole}


def check_resampling(resamples: int, seed: int) -> None:
    """Refuse a number of resamples or a seed with which no bootstrap is possible.

    Raises
    ------
    ConfigurationError
        If `resamples` is below 1 or `seed` below 0.
    """
    for name, value, least in (("resamples", resamples, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigurationError(
                f"{name} must be a whole number of at least {least}. Received: {value}."
            )


def _resampled(
    tallies: Tallies, counts: npt.NDArray[np.int64], resamples: int, seed: int
) -> dict[str, Numbers]:
    """Return the figures of each resample."""
    random = np.random.default_rng(seed)
    within = strata(tallies)
    size = max(1, _BLOCK // len(counts))
    blocks = []
    for start in range(0, resamples, size):
        weights = np.empty((min(size, resamples - start), len(counts)))
        for members in within:
            of_each = counts[members]
            # Equivalent to drawing clusters one by one: how often each was drawn.
            draws = int(of_each.sum())
            weights[:, members] = random.multinomial(draws, of_each / draws, size=len(weights))
        blocks.append(figures(tallies.weighed(weights)))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def strata(tallies: Tallies) -> list[npt.NDArray[np.intp]]:
    """Return the places of clusters that have rows of the same classes."""
    _, which = np.unique(tallies.true > 0, axis=0, return_inverse=True)
    return [np.flatnonzero(which == number) for number in range(which.max() + 1)]


def _figures(whole: Numbers, drawn: Numbers) -> list[Figure]:
    values, samples = np.atleast_1d(whole[0]), drawn.reshape(len(drawn), -1)
    return [_figure(float(value), samples[:, i]) for i, value in enumerate(values)]


def _figure(value: float, samples: Numbers) -> Figure:
    if np.isnan(value):
        return Figure(None)
    # A resample may lack a class that the whole has.
    samples = samples[~np.isnan(samples)]
    if not len(samples) or samples.min() == samples.max():
        return Figure(value)
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Figure(value, float(low), float(high))


def _ratio(part: Any, whole: Any) -> Numbers:
    out = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=out, where=np.asarray(whole) > 0)
    return out

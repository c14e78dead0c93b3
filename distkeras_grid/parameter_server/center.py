"""The center variable, what its rule remembers, and the arithmetic on both, chunk by chunk.

A chunk of 256 KiB stays in the processor's cache while the rule folds it and turns it into its
reply, so both together cost about one pass through memory. The caller holds a lock around each
call: a commit is folded at once or not at all, and every reply is one version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from distkeras_grid.errors import ParameterServerError
from distkeras_grid.rules import AsynchronousRule, CommitInfo, Memory, Rule, SynchronousRule
from distkeras_grid.rules.statistics import combine_statistics, fold_statistics
from distkeras_grid.weights import Vector

CHUNK = 65536


def _chunks(start: int, stop: int) -> Iterator[slice]:
    for begin in range(start, stop, CHUNK):
        yield slice(begin, min(begin + CHUNK, stop))


def is_finite(vector: Vector) -> bool:
    """Whether every element is a finite number.

    Parameters
    ----------
    vector : ndarray
        Shape ``(size,)``, ``float32``.

    Examples
    --------
    >>> is_finite(np.array([3e38, 3e38], np.float32)), is_finite(np.array([np.nan], np.float32))
    (True, False)
    """
    return all(bool(np.isfinite(vector[chunk]).all()) for chunk in _chunks(0, vector.size))


class Center:
    """The center of a run.

    Parameters
    ----------
    rule : Rule
        What the trainable part obeys.
    vector : ndarray
        The initial ``[trainable | statistics]``, ``float32``; changes in place.
    trainable_size : int
        Length of the trainable part.
    seats : int
        Number of workers.

    Attributes
    ----------
    vector : ndarray
        As it is now; of the first seat, where each has a center of its own.
    """

    def __init__(self, rule: Rule, vector: Vector, trainable_size: int, seats: int) -> None:
        self.vector = vector
        self._members = [vector] * seats
        if rule.separate:
            self._members[1:] = [vector.copy() for _ in range(1, seats)]
        self._rule = rule
        self._cut = trainable_size
        self._seats = seats
        dtype = vector.dtype
        self._shared = [np.zeros(trainable_size, dtype) for _ in range(rule.shared_vectors)]
        self._own = [
            [np.zeros(trainable_size, dtype) for _ in range(rule.seat_vectors)]
            for _ in range(seats)
        ]

    def greet(self, seat: int, out: Vector) -> None:
        """Give the center to a seat that starts.

        Parameters
        ----------
        seat : int
            Its number.
        out : ndarray
            Gets the center.
        """
        vector = self._members[seat]
        self._rule.greet(vector[: self._cut], self._memory(seat))
        np.copyto(out, vector)

    def of(self, seat: int) -> Vector:
        """Return the center that a seat trains against, as it is now."""
        return self._members[seat]

    def fold(self, payload: Vector, commit: CommitInfo) -> None:
        """Fold one commit, and turn it into its reply.

        Parameters
        ----------
        payload : ndarray
            A whole vector; changes in place.
        commit : CommitInfo
            Where it came from.

        Raises
        ------
        ParameterServerError
            If the rule folds whole rounds only.
        """
        rule = self._rule
        if not isinstance(rule, AsynchronousRule):
            raise ParameterServerError(f"The rule {rule.name!r} folds rounds, one commit came in.")
        vector, memory = self._members[commit.seat], self._memory(commit.seat)
        for chunk in _chunks(0, self._cut):
            kept = [each[chunk] for each in memory]
            rule.fold(vector[chunk], payload[chunk], commit, kept)
        workers = 1 if rule.separate else self._seats
        for chunk in _chunks(self._cut, vector.size):
            fold_statistics(vector[chunk], payload[chunk], workers)

    def combine(self, payloads: Sequence[Vector], commits: Sequence[CommitInfo]) -> None:
        """Fold one round, and turn every commit of it into its reply.

        Parameters
        ----------
        payloads : sequence of ndarray
            Whole vectors in the order of the seats; all change in place.
        commits : sequence of CommitInfo
            Where they came from, in the same order.

        Raises
        ------
        ParameterServerError
            If the rule folds single commits.
        """
        rule = self._rule
        if not isinstance(rule, SynchronousRule):
            raise ParameterServerError(f"The rule {rule.name!r} folds commits, a round came in.")
        for chunk in _chunks(0, self._cut):
            rule.combine(self.vector[chunk], [payload[chunk] for payload in payloads], commits)
        for chunk in _chunks(self._cut, self.vector.size):
            parts = [payload[chunk] for payload in payloads]
            combine_statistics(self.vector[chunk], parts, commits)

    def repeat(self, payload: Vector, seat: int) -> None:
        """Turn a commit that is in the center, or is too late for it, into its reply.

        Parameters
        ----------
        payload : ndarray
            A whole vector; changes in place, the center does not.
        seat : int
            Where it came from.
        """
        cut, vector = self._cut, self._members[seat]
        self._rule.repeat(vector[:cut], payload[:cut])
        np.copyto(payload[cut:], vector[cut:])
        self._rule.greet(vector[:cut], self._memory(seat))

    def _memory(self, seat: int) -> Memory:
        return [*self._shared, *self._own[seat]]

"""The center variable, what its rule remembers, and the arithmetic on both, chunk by chunk.

A chunk of 256 KiB stays in the processor's cache while the rule folds it and turns it into its
reply, so both together cost about one pass through memory. The caller holds a lock around each
call: a commit is folded at once or not at all, and every reply is one version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from distkeras_grid.errors import DataError, ParameterServerError
from distkeras_grid.rules import AsynchronousRule, CommitInfo, Memory, Rule, SynchronousRule
from distkeras_grid.rules.statistics import combine_statistics, fold_statistics
from distkeras_grid.weights import Section, Vector, vector_size

CHUNK = 65536


def _chunks(size: int) -> Iterator[slice]:
    for begin in range(0, size, CHUNK):
        yield slice(begin, begin + CHUNK)


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
    return all(bool(np.isfinite(vector[chunk]).all()) for chunk in _chunks(vector.size))


class Center:
    """The center of a run.

    Parameters
    ----------
    rule : Rule
        What the trainable part obeys.
    vector : ndarray
        The initial weights, ``float32``; changes in place.
    sections : sequence of Section
        Its sections: the rule acts on one of them, the others are averaged.
    seats : int
        Number of workers.

    Attributes
    ----------
    vector : ndarray
        As it is now; of the first seat, where each has a center of its own.
    """

    def __init__(self, rule: Rule, vector: Vector, sections: Sequence[Section], seats: int) -> None:
        self.vector = vector
        self._members = [vector] * seats
        if rule.separate:
            self._members[1:] = [vector.copy() for _ in range(1, seats)]
        self._rule = rule
        (self._ruled,) = (each.span for each in sections if each.policy == "rule")
        self._averaged = [each.span for each in sections if each.policy == "average"]
        self._seats = seats
        ruled = vector[self._ruled]
        self._shared = [np.zeros_like(ruled) for _ in range(rule.shared_vectors)]
        self._own = [[np.zeros_like(ruled) for _ in range(rule.seat_vectors)] for _ in range(seats)]

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
        self._rule.greet(vector[self._ruled], self._memory(seat))
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
        center, sent = vector[self._ruled], payload[self._ruled]
        for chunk in _chunks(center.size):
            rule.fold(center[chunk], sent[chunk], commit, [each[chunk] for each in memory])
        workers = 1 if rule.separate else self._seats
        for part in self._averaged:
            center, sent = vector[part], payload[part]
            for chunk in _chunks(center.size):
                fold_statistics(center[chunk], sent[chunk], workers)

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
        self._combine(self._ruled, payloads, commits, rule.combine)
        for part in self._averaged:
            self._combine(part, payloads, commits, combine_statistics)

    def repeat(self, payload: Vector, seat: int) -> None:
        """Turn a commit that is in the center, or is too late for it, into its reply.

        Parameters
        ----------
        payload : ndarray
            A whole vector; changes in place, the center does not.
        seat : int
            Where it came from.
        """
        vector = self._members[seat]
        self._rule.repeat(vector[self._ruled], payload[self._ruled])
        for part in self._averaged:
            np.copyto(payload[part], vector[part])
        self._rule.greet(vector[self._ruled], self._memory(seat))

    def to_state(self) -> dict[str, Any]:
        """Return all that changes in a run: lists of copied arrays by name."""
        return {
            "centers": [member.copy() for member in self._centers],
            "shared": [vector.copy() for vector in self._shared],
            "own": [[vector.copy() for vector in vectors] for vectors in self._own],
        }

    @classmethod
    def from_state(
        cls, rule: Rule, sections: Sequence[Section], seats: int, state: Mapping[str, Any]
    ) -> Center:
        """Build the center that `to_state` told.

        Parameters
        ----------
        rule, sections, seats
            Those of the center that was told.
        state : mapping
            What `to_state` returned; its arrays are copied.

        Raises
        ------
        DataError
            If the state is that of another rule, of other sections or of other seats.
        """
        vector = np.empty(vector_size(sections), state["centers"][0].dtype)
        center = cls(rule, vector, sections, seats)
        target = {"centers": center._centers, "shared": center._shared, "own": center._own}
        _copy_all(target, state)
        return center

    @property
    def _centers(self) -> list[Vector]:
        return self._members if self._rule.separate else [self.vector]

    def _combine(
        self,
        part: slice,
        payloads: Sequence[Vector],
        commits: Sequence[CommitInfo],
        combine: Callable[[Vector, Sequence[Vector], Sequence[CommitInfo]], None],
    ) -> None:
        center, sent = self.vector[part], [payload[part] for payload in payloads]
        for chunk in _chunks(center.size):
            combine(center[chunk], [each[chunk] for each in sent], commits)

    def _memory(self, seat: int) -> Memory:
        return [*self._shared, *self._own[seat]]


def _copy_all(target: Any, source: Any) -> None:
    """Copy the arrays of a tree into those of another, which must have the same form."""
    if isinstance(target, dict):
        for name, part in target.items():
            _copy_all(part, source[name])
    elif isinstance(target, list):
        if len(target) != len(source):
            raise DataError(f"The state needs {len(target)} entries. Received: {len(source)}.")
        for part, given in zip(target, source, strict=True):
            _copy_all(part, given)
    elif target.shape != source.shape or target.dtype != source.dtype:
        raise DataError(
            f"The state needs a vector of shape {target.shape} and type {target.dtype}. Received: "
            f"{source.shape} and {source.dtype}."
        )
    else:
        np.copyto(target, source)

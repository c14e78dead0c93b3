"""The center, the vectors that its rule keeps, and the arithmetic on both, chunk by chunk.

A chunk of 256 KiB stays in the processor's cache while the rule folds it, turns it into its reply
and checks it, so all three cost about one pass through memory. The caller holds a lock during each
call, so each reply is of one version.

A fold is atomic, and the center stays finite:

- Numbers of ordinary size cannot overflow, so they are folded in place.
- If a commit or the center has a number above 1e15, the vectors are copied first. A fold whose
  result is not finite is refused, and the copies are put back: `NonFiniteCenterError`.
- A rule that raises, or turns ordinary numbers into NaN or infinity, is wrong. It may have changed
  some chunks and not the others, so the center is lost: `RuleFailedError`, now and in each later
  call. The run ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from distkeras_grid.errors import (
    DataError,
    NonFiniteCenterError,
    ParameterServerError,
    RuleFailedError,
)
from distkeras_grid.rules import AsynchronousRule, CommitInfo, Memory, Rule, SynchronousRule
from distkeras_grid.rules.finite_checks import Magnitude, chunks, is_finite, is_small, size_of
from distkeras_grid.rules.statistics import combine_statistics, fold_statistics
from distkeras_grid.weights import Section, Vector, vector_size


class Center:
    """The center of a run."""

    def __init__(self, rule: Rule, vector: Vector, sections: Sequence[Section], seats: int) -> None:
        self.vector = vector
        self._centers = [vector]
        if rule.traits.own_center:
            self._centers += [vector.copy() for _ in range(1, seats)]
        self._rule = rule
        (self._ruled,) = (each.span for each in sections if each.policy == "rule")
        self._averaged = [each.span for each in sections if each.policy == "average"]
        # Rounds in which workers make the steps do not change the weights.
        self._changing = [*([] if rule.traits.steps_on_workers else [self._ruled]), *self._averaged]
        self._seats = seats
        ruled = vector[self._ruled]
        self._shared = [np.zeros_like(ruled) for _ in range(rule.traits.shared_vectors)]
        self._own = [
            [np.zeros_like(ruled) for _ in range(rule.traits.seat_vectors)] for _ in range(seats)
        ]
        self._small = [self._is_small(vector)] * len(self._centers)
        self._failure: Exception | None = None

    def greet(self, seat: int, out: Vector) -> None:
        """Give the center to a seat that starts."""
        vector = self.of(seat)
        with self._ruling():
            self._rule.greet(vector[self._ruled], self._memory(seat))
        np.copyto(out, vector)

    def of(self, seat: int) -> Vector:
        """Return the current center of a seat."""
        self._check()
        return self._centers[self._place(seat)]

    def replace(self, vector: Vector) -> None:
        """Replace the center by weights that a worker sent; they must be finite."""
        self._check()
        np.copyto(self.vector, vector)
        self._small[0] = self._is_small(self.vector)

    def fold(self, payload: Vector, commit: CommitInfo, size: Magnitude | None = None) -> None:
        """Fold one commit, and turn it into its reply."""
        rule = self._rule
        if not isinstance(rule, AsynchronousRule):
            raise ParameterServerError(f"The rule {rule.name!r} folds rounds. Received: a commit.")
        center, memory = self.of(commit.seat), self._memory(commit.seat)
        workers = 1 if rule.traits.own_center else self._seats

        def fold_chunk(part: Vector, sent: Vector, kept: Memory) -> None:
            rule.fold(part, sent, commit, kept)

        def average_chunk(part: Vector, sent: Vector, _: Memory) -> None:
            fold_statistics(part, sent, workers)

        def change() -> bool:
            small = _fold_span(self._ruled, center, payload, memory, fold_chunk)
            for span in self._averaged:
                small &= _fold_span(span, center, payload, (), average_chunk)
            return small

        self._change(commit.seat, [size or size_of(payload)], change)

    def combine(
        self,
        payloads: Sequence[Vector],
        commits: Sequence[CommitInfo],
        sizes: Sequence[Magnitude] | None = None,
    ) -> None:
        """Fold one round, and turn every commit of it into its reply.

        `payloads`: whole vectors in the order of the seats; all change in place.
        """
        rule = self._rule
        if not isinstance(rule, SynchronousRule):
            raise ParameterServerError(f"The rule {rule.name!r} folds commits. Received: a round.")

        def change() -> bool:
            small = self._combine_span(self._ruled, payloads, commits, rule.combine)
            for span in self._averaged:
                small &= self._combine_span(span, payloads, commits, combine_statistics)
            return small

        self._change(0, sizes or [size_of(payload) for payload in payloads], change)

    def repeat(self, payload: Vector, seat: int) -> None:
        """Turn a commit that has been folded, or is too late to be, into its reply."""
        vector = self.of(seat)
        with self._ruling():
            self._rule.repeat(vector[self._ruled], payload[self._ruled])
            self._rule.greet(vector[self._ruled], self._memory(seat))
        for span in self._averaged:
            np.copyto(payload[span], vector[span])

    def to_state(self) -> dict[str, Any]:
        """Return everything that changes in a run: lists of copied arrays by name."""
        self._check()
        return {
            "centers": [center.copy() for center in self._centers],
            "shared": [vector.copy() for vector in self._shared],
            "own": [[vector.copy() for vector in vectors] for vectors in self._own],
        }

    @classmethod
    def from_state(
        cls, rule: Rule, sections: Sequence[Section], seats: int, state: Mapping[str, Any]
    ) -> Center:
        """Build a center from what `to_state` returned."""
        vector = np.zeros(vector_size(sections), state["centers"][0].dtype)
        center = cls(rule, vector, sections, seats)
        target = {"centers": center._centers, "shared": center._shared, "own": center._own}
        _copy_all(target, state)
        center._small = [center._is_small(each) for each in center._centers]
        return center

    # How a fold ends

    def _change(self, seat: int, sizes: Sequence[Magnitude], fold: Callable[[], bool]) -> None:
        """Fold completely or not at all; `fold` returns whether the center's numbers are small."""
        self._check()
        if Magnitude.NOT_FINITE in sizes:
            raise NonFiniteCenterError("A commit holds NaN or infinity: nothing was folded.")
        place = self._place(seat)
        kept = [self._centers[place][span] for span in self._changing] + self._memory(seat)
        if self._small[place] and all(size is Magnitude.SMALL for size in sizes):
            with self._ruling():
                small = fold()
                if not small and not all(map(is_finite, kept)):
                    raise ArithmeticError("it made NaN or infinity of finite numbers")
        else:
            before = [each.copy() for each in kept]
            with self._ruling(), np.errstate(over="ignore", invalid="ignore"):
                small = fold()
                # In here, too: whatever fails before the copies are back leaves no center to use.
                finite = all(map(is_finite, kept))
                if not finite:
                    for each, copy in zip(kept, before, strict=True):
                        np.copyto(each, copy)
            if not finite:
                raise NonFiniteCenterError(
                    "The center would become NaN or infinite: nothing was folded. A commit or a "
                    "weight is above 1e15: lower the learning rate, or look for values in the data "
                    "that are not scaled."
                )
        self._small[place] = small

    @contextmanager
    def _ruling(self) -> Iterator[None]:
        """Record it if the rule fails. Users write rules, which may raise anything."""
        self._check()
        try:
            yield
        except Exception as error:
            self._failure = error
            raise RuleFailedError.of(self._rule.name, error) from error

    def _check(self) -> None:
        if self._failure is not None:
            raise RuleFailedError.of(self._rule.name, self._failure) from self._failure

    # Parts

    def _combine_span(
        self,
        span: slice,
        payloads: Sequence[Vector],
        commits: Sequence[CommitInfo],
        combine: Callable[[Vector, Sequence[Vector], Sequence[CommitInfo]], None],
    ) -> bool:
        center, sent = self.vector[span], [payload[span] for payload in payloads]
        small = True
        for place in chunks(center.size):
            part = center[place]
            combine(part, [each[place] for each in sent], commits)
            small = small and (span not in self._changing or is_small(part))
        return small

    def _is_small(self, vector: Vector) -> bool:
        return all(size_of(vector[span]) is Magnitude.SMALL for span in self._changing)

    def _place(self, seat: int) -> int:
        return seat if self._rule.traits.own_center else 0

    def _memory(self, seat: int) -> list[Vector]:
        return [*self._shared, *self._own[seat]]


def _fold_span(
    span: slice,
    center: Vector,
    payload: Vector,
    memory: Memory,
    fold: Callable[[Vector, Vector, Memory], None],
) -> bool:
    """Fold a section chunk by chunk; return whether the center's numbers are small now."""
    center, payload = center[span], payload[span]
    small = True
    for place in chunks(center.size):
        part = center[place]
        fold(part, payload[place], [each[place] for each in memory])
        small = small and is_small(part)
    return small


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

"""The center, the vectors that its rule keeps, and the arithmetic on both, chunk by chunk.

A chunk of 256 KiB stays in the processor's cache while the rule folds it, turns it into its reply
and checks it, so all three cost about one pass through memory. The caller holds a lock during each
call, so each reply is of one version.

A fold is atomic, and the center stays finite:

- Numbers of ordinary size cannot overflow, so they are folded in place.
- If a commit or the center has a number above 1e15, the vectors are copied first. A fold whose
  result is not finite is refused, and the copies are put back: `NonFiniteCenterError`.
- Whatever else a fold raises is a defect, and may have changed some chunks and not the others. So
  the server ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from distkeras_grid.errors import DataError, NonFiniteCenterError, ParameterServerError
from distkeras_grid.rules import AsynchronousRule, CommitInfo, Rule, SynchronousRule
from distkeras_grid.rules.finite_checks import Magnitude, chunks, is_finite, is_small, size_of
from distkeras_grid.rules.statistics import fold_statistics
from distkeras_grid.rules.synchronous import average_round
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
        # What the rule is handed of a seat.
        self._memories = [[*self._shared, *vectors] for vectors in self._own]
        self._small = [self._is_small(vector)] * len(self._centers)

    def on_join(self, seat: int, out: Vector) -> None:
        """Give the center to a seat that starts."""
        vector = self.of(seat)
        self._rule.on_join(vector[self._ruled], self._memories[seat])
        np.copyto(out, vector)

    def of(self, seat: int) -> Vector:
        """Return the current center of a seat."""
        return self._centers[seat if self._rule.traits.own_center else 0]

    def replace(self, vector: Vector) -> None:
        """Replace the center by weights that a worker sent; they must be finite."""
        np.copyto(self.vector, vector)
        self._small[0] = self._is_small(self.vector)

    def fold(self, payload: Vector, commit: CommitInfo, size: Magnitude | None = None) -> None:
        """Fold one commit, and turn it into its reply."""
        rule, seat = self._rule, commit.seat
        if not isinstance(rule, AsynchronousRule):
            raise ParameterServerError(f"The rule {rule.name!r} folds rounds. Received: a commit.")
        own = seat if rule.traits.own_center else 0
        center, memory = self._centers[own], self._memories[seat]
        before = self._begin(seat, [size or size_of(payload)])
        small = True
        with np.errstate(over="ignore", invalid="ignore"):
            ruled, sent = center[self._ruled], payload[self._ruled]
            for place in chunks(ruled.size):
                part = ruled[place]
                rule.fold(part, sent[place], commit, [each[place] for each in memory])
                small = small and is_small(part)
            workers = 1 if rule.traits.own_center else self._seats
            for span in self._averaged:
                averaged, sent = center[span], payload[span]
                for place in chunks(averaged.size):
                    fold_statistics(averaged[place], sent[place], workers)
                    small = small and is_small(averaged[place])
        self._end(seat, before, small=small)

    def aggregate(
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
        before = self._begin(0, sizes or [size_of(payload) for payload in payloads])
        small = True
        with np.errstate(over="ignore", invalid="ignore"):
            for span in (self._ruled, *self._averaged):
                aggregate = rule.aggregate if span is self._ruled else average_round
                center, sent = self.vector[span], [payload[span] for payload in payloads]
                for place in chunks(center.size):
                    aggregate(center[place], [each[place] for each in sent], commits)
                    if span in self._changing:
                        small = small and is_small(center[place])
        self._end(0, before, small=small)

    def repeat(self, payload: Vector, seat: int) -> None:
        """Turn a commit that has been folded, or is too late to be, into its reply."""
        vector = self.of(seat)
        self._rule.repeat(vector[self._ruled], payload[self._ruled])
        self._rule.on_join(vector[self._ruled], self._memories[seat])
        for span in self._averaged:
            np.copyto(payload[span], vector[span])

    def to_state(self) -> dict[str, Any]:
        """Return everything that changes in a run: lists of copied arrays by name."""
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
        own = [*center._centers, *center._shared, *chain(*center._own)]
        saved = [*state["centers"], *state["shared"], *chain(*state["own"])]
        due, received = ([(each.shape, each.dtype.name) for each in some] for some in (own, saved))
        if received != due:
            raise DataError(f"The state of a center has vectors {due}. Received: {received}.")
        if not all(map(is_finite, saved)):
            raise DataError("A saved center contains NaN or infinity.")
        for each, other in zip(own, saved, strict=True):
            np.copyto(each, other)
        center._small = [center._is_small(each) for each in center._centers]
        return center

    # A fold is complete, or has changed nothing

    def _begin(self, seat: int, sizes: Sequence[Magnitude]) -> list[Vector] | None:
        """Return copies of what a fold changes, None where no number can overflow."""
        if Magnitude.NOT_FINITE in sizes:
            raise NonFiniteCenterError("A commit holds NaN or infinity: nothing was folded.")
        small = self._small[seat if self._rule.traits.own_center else 0]
        if small and Magnitude.LARGE not in sizes:
            return None
        return [each.copy() for each in self._changed(seat)]

    def _end(self, seat: int, before: list[Vector] | None, *, small: bool) -> None:
        """Keep the result of a fold if it is finite."""
        if not small or before is not None:
            changed = self._changed(seat)
            if not all(map(is_finite, changed)):
                if before is None:
                    raise ArithmeticError(
                        f"The rule {self._rule.name!r} made NaN or infinity of finite numbers."
                    )
                for each, copy in zip(changed, before, strict=True):
                    np.copyto(each, copy)
                raise NonFiniteCenterError(
                    "The center would become NaN or infinite: nothing was folded. A commit or a "
                    "weight is above 1e15: lower the learning rate, or look for values in the data "
                    "that are not scaled."
                )
        self._small[seat if self._rule.traits.own_center else 0] = small

    def _changed(self, seat: int) -> list[Vector]:
        center = self.of(seat)
        return [center[span] for span in self._changing] + self._memories[seat]

    def _is_small(self, vector: Vector) -> bool:
        return all(size_of(vector[span]) is Magnitude.SMALL for span in self._changing)

"""What the server measures of commits to find outliers, and what it remembers of folded ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from distkeras_grid.outliers import CommitStatistics, RunningStatistics, outlier
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.server_events import ReceivedCommit
from distkeras_grid.rules import CommitKind, RuleProperties
from distkeras_grid.rules.finite_checks import chunks
from distkeras_grid.spec import Outliers, RunSpec
from distkeras_grid.weights import Section, Vector


class CommitFilter:
    """The filter of a run and its memory.

    `outliers`: what an outlier is.
    """

    def __init__(
        self, outliers: Outliers, traits: RuleProperties, sections: Sequence[Section]
    ) -> None:
        self.outliers = outliers
        self.statistics = RunningStatistics()
        self._sends_weights = traits.sends is CommitKind.WEIGHTS
        (self._ruled,) = (each.span for each in sections if each.policy == "rule")
        self._averaged = [each.span for each in sections if each.policy == "average"]

    def measure(
        self, payload: Vector, center: Vector, loss: float, *, from_center: bool = True
    ) -> CommitStatistics:
        """Measure a commit.

        `payload`: what was sent, shape ``(size,)``, finite.
        `center`: the center that it is to be folded into, same shape.
        """
        return CommitStatistics(
            loss,
            _norm(self._changes(payload, center)) if from_center else None,
            math.hypot(
                *(_norm(_differences(payload[span], center[span])) for span in self._averaged)
            ),
        )

    def find(self, measure: CommitStatistics, together: Sequence[CommitStatistics]) -> str:
        """Return what makes one of some commits an outlier, in words; empty if nothing does."""
        return outlier(measure, together, self.statistics, self.outliers.factor)

    def mark(
        self, commits: Sequence[ReceivedCommit], center: Center, spec: RunSpec
    ) -> ReceivedCommit | None:
        """Measure commits, and note which are outliers; return one that is to stop the run."""
        measures = []
        for commit in commits:
            seat, message = commit.sender.seat, commit.message
            own = spec.algorithm.own_start and seat > 0 and message.sequence == 0
            commit.measure = self.measure(
                commit.vector, center.of(seat), message.loss or 0.0, from_center=not own
            )
            measures.append(commit.measure)
        for commit, measure in zip(commits, measures, strict=True):
            commit.reason = self.find(measure, measures)
            if commit.reason and self.outliers.on_outlier == "stop":
                return commit
        return None

    def update_statistics(self, measures: Iterable[CommitStatistics | None]) -> None:
        """Remember commits that were folded."""
        for measure in measures:
            if measure is not None:
                self.statistics.add(measure)

    def forget_norms(self) -> None:
        """Begin to compare anew, because all changes will have another size."""
        self.statistics.recent.clear()

    def to_saved(self) -> Any:
        """Return the memory as a plain tree."""
        return msgspec.to_builtins(self.statistics)

    def restore(self, saved: RunningStatistics) -> None:
        """Go on from what `to_saved` returned."""
        # A copy: what was saved does not change with the run.
        self.statistics = msgspec.convert(msgspec.to_builtins(saved), RunningStatistics)

    def _changes(self, payload: Vector, center: Vector) -> Iterator[Vector]:
        """Yield the change of the trainable weights, chunk by chunk."""
        sent = payload[self._ruled]
        if self._sends_weights:
            yield from _differences(sent, center[self._ruled])
        else:
            yield from (sent[place] for place in chunks(sent.size))


def _differences(one: Vector, other: Vector) -> Iterator[Vector]:
    for place in chunks(one.size):
        with np.errstate(over="ignore"):
            yield one[place] - other[place]


def _norm(parts: Iterable[Vector]) -> float:
    """Return the Euclidean norm of a vector in chunks."""
    total = 0.0
    for part in parts:
        with np.errstate(over="ignore"):
            squares = float(np.dot(part, part))
        if not math.isfinite(squares):
            wide = part.astype(np.float64)
            squares = float(np.dot(wide, wide))
        total += squares
    return math.sqrt(total)

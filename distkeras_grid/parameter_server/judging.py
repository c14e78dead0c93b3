"""What the server measures of commits for a run's judge, and what it remembers of folded ones."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from distkeras_grid.errors import JudgeFailedError
from distkeras_grid.judges import Judge, Measure, Seen
from distkeras_grid.rules import Sends, Traits
from distkeras_grid.rules.magnitudes import chunks
from distkeras_grid.weights import Section, Vector

if TYPE_CHECKING:
    from distkeras_grid.parameter_server.gathering import SavedJudging

#: Share of the course that each folded commit leaves of it; it is that of the last ten or so.
DECAY = 0.9
#: Characters of a finding that are kept; each goes to the driver, and into the history.
LONGEST_FINDING = 1000


class Judging:
    """The judge of a run and its memory.

    Parameters
    ----------
    judge : Judge or None
        The judge; without one nothing is measured.
    traits : Traits
        Those of the run's rule.
    sections : sequence of Section
        Sections of the vector.

    Attributes
    ----------
    seen : Seen
        What was seen of the commits that were folded.
    course : ndarray or None
        Decaying sum of their changes, shape ``(trainable size,)``, ``float32``; None before the
        first one, or if the judge does not look at it.
    """

    def __init__(self, judge: Judge | None, traits: Traits, sections: Sequence[Section]) -> None:
        self.judge = judge
        self.seen = Seen()
        self.course: Vector | None = None
        self._spare: Vector | None = None
        self._sends_weights = traits.sends is Sends.WEIGHTS
        (self._ruled,) = (each.span for each in sections if each.policy == "rule")
        self._averaged = [each.span for each in sections if each.policy == "average"]

    @property
    def waits(self) -> bool:
        """Whether there is nothing yet to compare a commit with, but those of other workers."""
        return self.judge is not None and not self.seen.recent

    @property
    def refuses(self) -> bool:
        """Whether workers whose commits are outliers are to train them again."""
        return self.judge is not None and self.judge.on_outlier == "refuse"

    def measure(
        self, payload: Vector, center: Vector, loss: float, *, from_center: bool = True
    ) -> Measure:
        """Measure a commit.

        Parameters
        ----------
        payload : ndarray
            What was sent, shape ``(size,)``, finite.
        center : ndarray
            The center that it is to be folded into, same shape.
        loss : float
            Mean loss of the window.
        from_center : bool, default True
            Whether the window has begun from the center. If not, the change is not known.
        """
        return Measure(
            loss,
            _norm(self._changes(payload, center)) if from_center else None,
            math.hypot(
                *(_norm(_differences(payload[span], center[span])) for span in self._averaged)
            ),
            self._cosine(payload, center),
        )

    def find(self, measures: Sequence[Measure]) -> list[str]:
        """Let the judge say what is wrong with each of some commits.

        Parameters
        ----------
        measures : sequence of Measure
            The commits.

        Returns
        -------
        list of str
            For each what is wrong, in words; empty if it may be folded.

        Raises
        ------
        JudgeFailedError
            If the judge fails, or returns something else than a text for each commit.
        """
        if self.judge is None:
            return [""] * len(measures)
        with self._asking(self.judge):
            return _findings(self.judge.find(measures, self.seen), len(measures))

    def course_after(self, payloads: Sequence[Vector], centers: Sequence[Vector]) -> Vector | None:
        """Return the course with the changes of commits that are about to be folded.

        Parameters
        ----------
        payloads, centers : sequence of ndarray
            The commits, and the center of each, before the fold.

        Raises
        ------
        JudgeFailedError
            If the judge cannot say whether it needs the course.
        """
        if self.judge is None:
            return None
        with self._asking(self.judge):
            needed = bool(self.judge.needs_course)
        if not needed:
            return None
        # The memory of the course before last: a new vector for each commit would take longer.
        course = np.empty_like(payloads[0][self._ruled]) if self._spare is None else self._spare
        self._spare = course
        if self.course is None:
            course.fill(0)
        else:
            np.multiply(self.course, DECAY, out=course)
        with np.errstate(over="ignore"):
            for payload, center in zip(payloads, centers, strict=True):
                for part, change in self._beside(course, payload, center):
                    np.add(part, change if len(payloads) == 1 else change / len(payloads), out=part)
        return course

    def remember(self, measures: Iterable[Measure | None], course: Vector | None) -> None:
        """Remember commits that were folded, and the course after them."""
        for measure in measures:
            if measure is not None:
                self.seen.add(measure)
        if course is not None:
            self._spare, self.course = self.course, course

    def forget_norms(self) -> None:
        """Begin to compare anew, because all changes will have another size."""
        self.seen.recent.clear()

    def to_saved(self) -> dict[str, Any] | None:
        """Return the memory as a plain tree; None without a judge."""
        if self.judge is None:
            return None
        course = None if self.course is None else self.course.copy()
        return {"seen": msgspec.to_builtins(self.seen), "course": course}

    def restore(self, saved: SavedJudging | Mapping[str, Any] | None) -> None:
        """Go on from what `to_saved` returned, read or not."""
        if saved is None:
            return
        told = saved if isinstance(saved, Mapping) else msgspec.structs.asdict(saved)
        # A copy: what was saved does not change with the run.
        self.seen = msgspec.convert(msgspec.to_builtins(told["seen"]), Seen)
        self.course = None if told["course"] is None else told["course"].copy()

    @contextmanager
    def _asking(self, judge: Judge) -> Iterator[None]:
        """Name the judge if it fails. Users write judges, which may raise anything."""
        try:
            yield
        except Exception as error:
            raise JudgeFailedError.of(judge.name, error) from error

    def _changes(self, payload: Vector, center: Vector) -> Iterator[Vector]:
        """Yield the change of the trainable weights, chunk by chunk."""
        sent = payload[self._ruled]
        if self._sends_weights:
            yield from _differences(sent, center[self._ruled])
        else:
            yield from (sent[place] for place in chunks(sent.size))

    def _cosine(self, payload: Vector, center: Vector) -> float | None:
        if self.course is None:
            return None
        dot = squares = course = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for part, change in self._beside(self.course, payload, center):
                dot += float(np.dot(change, part))
                squares += float(np.dot(change, change))
                course += float(np.dot(part, part))
        length = math.sqrt(squares) * math.sqrt(course)
        # Squares that overflow are those of an outlier by its norm.
        return dot / length if length > 0 and math.isfinite(length) else None

    def _beside(
        self, vector: Vector, payload: Vector, center: Vector
    ) -> Iterator[tuple[Vector, Vector]]:
        """Yield chunks of a vector and of the change beside them."""
        parts = (vector[place] for place in chunks(vector.size))
        return zip(parts, self._changes(payload, center), strict=True)


def _findings(told: Iterable[Any], commits: int) -> list[str]:
    """Return what a judge has said, as texts that can be sent.

    Raises
    ------
    TypeError, ValueError
        If it is not one text for each commit.
    """
    found = told if isinstance(told, str) else list(told)
    if isinstance(found, str) or not all(isinstance(each, str) for each in found):
        raise TypeError(
            "its method find returns a list with a text for each commit, empty if it may be "
            f"folded. Received: {reprlib.repr(told)}"
        )
    if len(found) != commits:
        raise ValueError(
            f"its method find returns a list with a text for each commit, here {commits}. "
            f"Received: {reprlib.repr(found)}"
        )
    # Plain texts, whatever class they are of. Lone surrogates cannot be sent.
    return [
        "".join(each)[:LONGEST_FINDING].encode("utf-8", "backslashreplace").decode()
        for each in found
    ]


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

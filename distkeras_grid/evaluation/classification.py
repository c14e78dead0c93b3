"""The figures of predictions by row, and by unit: a source image, a specimen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import ConfigurationError, DataError, EmptyDataError, LabelError
from distkeras_grid.evaluation.intervals import Figure, share_of_right

#: The level of the rows themselves. The other levels have the names of their columns.
ROW = "row"
#: The class of a prediction with NaN, which names none and is never right.
NO_CLASS = -1

Counts = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class ClassCounts:
    """What the rows of one unit and one label say about one class."""

    # The units of the rows, the smallest first. None stands for a unit of its own: a source without
    # a specimen counts as a specimen.
    units: tuple[str | None, ...]
    true: int  # Label of the rows: a class number
    named: int  # Number of the class that the tally is about
    votes: int  # Number of rows whose prediction names the class
    score: float  # Sum of the scores that the rows' predictions give the class


@dataclass(frozen=True)
class ClassFigures:
    """The figures of one class."""

    name: str
    count: int  # How many rows or units have this label
    # precision and recall and f1: The share of correct predictions among those of this class; the
    # share among those with its label; and the harmonic mean of both. None where one is not
    # defined, such as the precision of a class that was never predicted.
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class ClassShare:
    """A class and its share of the labels."""

    name: str
    share: float

    def __str__(self) -> str:
        """Return the share and the name."""
        return f"{self.share:.3f} ({self.name})"


@dataclass(frozen=True)
class EvaluationLevel:
    """The figures of rows, or of the units of one column."""

    name: str  # ``row``, or the column that names the units
    count: int  # Number of rows or units
    accuracy: Figure  # The share of correct predictions
    balanced: float  # The mean recall of the classes that occur
    most_frequent: ClassShare  # What always naming the most frequent class would get right
    classes: tuple[ClassFigures, ...]
    # Counts; rows are labels, and columns are predictions; shape (classes, classes)
    confusion: Counts = field(compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON types."""
        return {
            "name": self.name,
            "count": self.count,
            "accuracy": self.accuracy.to_json(),
            "balanced_accuracy": self.balanced,
            "most_frequent": asdict(self.most_frequent),
            "classes": [asdict(each) for each in self.classes],
            "confusion": self.confusion.tolist(),
        }


@dataclass(frozen=True)
class Evaluation:
    """Figures at each level.

    ``print(evaluation)`` shows them as tables.

    Parameters
    ----------
    levels : tuple of Level
        The rows first.
    clusters : int
        How many clusters the intervals are computed from.
    cluster : str
        What a cluster is: the name of the last column, or ``row``.
    notes : tuple of str
        What could not be computed, and why.
    """

    levels: tuple[EvaluationLevel, ...]
    clusters: int
    cluster: str
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """The share of rows whose prediction is correct."""
        return self.levels[0].accuracy.value

    def level(self, name: str) -> EvaluationLevel:
        """Return one level.

        Raises
        ------
        ConfigurationError
            If there is no level of this name.
        """
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
            "accuracy": self.accuracy,
            "rows": first.count,
            "confusion": first.confusion.tolist(),
            "levels": [each.to_json() for each in self.levels],
            "intervals": {
                "level": 0.95,
                "clusters": self.clusters,
                "cluster": self.cluster,
            },
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        from distkeras_grid.evaluation.text import as_text

        return as_text(self)


def evaluate_tallies(
    tallies: Iterable[ClassCounts], by: Sequence[str], *, classes: Sequence[str] = ()
) -> Evaluation:
    """Return the figures of predictions that were counted by unit, label and class.

    `by`: the names of the units, the smallest first. Each unit must lie in one unit of the next
    name; the last ones are the clusters of the intervals. Without any, rows are independent.
    """
    counted = list(tallies)
    if not counted:
        raise EmptyDataError("There are no rows to evaluate. Check the path and the filter.")
    size = _number_of_classes(counted, len(classes))
    names = tuple(classes) or tuple(map(str, range(size)))
    true, named = (np.array([getattr(each, key) for each in counted]) for key in ("true", "named"))
    votes = np.array([each.votes for each in counted], np.int64)
    units = units_of([each.units for each in counted], by)
    levels = [_level(ROW, names, true, named, votes, units[-1].of if units else None)]
    notes = _of_single_clusters(units[-1], by[-1], true, names) if units else []
    for name, level in zip(by, units, strict=True):
        mixed = _with_several(level, true)
        if len(mixed):
            notes.append(
                f"{len(mixed)} of {len(level.names)} in column {name!r} have rows of several "
                f"classes, such as {level.names[mixed[0]]!r}: they do not count in figures by "
                f"{name}."
            )
        pure = np.delete(np.arange(len(level.names)), mixed)
        if len(pure):
            scores = np.zeros((len(level.names), size))
            np.add.at(scores, (level.of, named), [each.score for each in counted])
            # All tallies of a pure unit have its label and its cluster.
            _, first = np.unique(level.of, return_index=True)
            classes_of, ones = scores.argmax(axis=1)[pure], np.ones(len(pure), np.int64)
            cluster = units[-1].of[first][pure]
            levels.append(_level(name, names, true[first][pure], classes_of, ones, cluster))
    return Evaluation(
        tuple(levels),
        clusters=len(units[-1].names) if units else levels[0].count,
        cluster=by[-1] if by else ROW,
        notes=tuple(notes),
    )


def _number_of_classes(counted: Sequence[ClassCounts], wanted: int) -> int:
    """Return the number of classes; refuse predictions and labels that name none of them."""
    lost = sum(each.votes for each in counted if each.named == NO_CLASS)
    if lost:
        raise DataError(
            f"{lost} predictions hold NaN and name no class; the model's training has diverged"
        )
    numbers = {number for each in counted for number in (each.true, each.named)}
    size = wanted or max(numbers) + 1
    outside = sorted(number for number in numbers if not 0 <= number < size)
    if outside:
        raise LabelError(f"classes must lie in 0..{size - 1}. Received: {outside[:5]}.")
    return size


@dataclass(frozen=True)
class Units:
    """The units of one level, numbered by their places in `names`."""

    names: list[str]
    of: Places  # The unit that each tally belongs to; shape (tallies,)


def units_of(rows: Sequence[tuple[str | None, ...]], by: Sequence[str]) -> list[Units]:
    """Return the units of each level, and check that they are nested."""
    levels: list[Units] = []
    for place, name in enumerate(by):
        called = [_called(units, place, name) for units in rows]
        # The order must not depend on Spark's.
        known = sorted(set(called))
        places = {unit: number for number, unit in enumerate(known)}
        level = Units(
            [unit for _, unit in known], np.array([places[unit] for unit in called], np.intp)
        )
        if levels:
            _check_nested(levels[-1], level, by[place - 1], name)
        levels.append(level)
    return levels


def _called(units: Sequence[str | None], place: int, column: str) -> tuple[int, str]:
    """Return what identifies a unit: the column that names it, and its name."""
    for smaller in range(place, -1, -1):
        name = units[smaller]
        if name is not None:
            return smaller, name
    raise DataError(
        f"Some rows have no value in column {column!r}, and so belong to nothing. Filter them out, "
        "or leave the column out of `by`."
    )


def _check_nested(inner: Units, outer: Units, inner_name: str, outer_name: str) -> None:
    torn = _with_several(inner, outer.of)
    if len(torn):
        raise DataError(
            f"{inner.names[torn[0]]!r} in column {inner_name!r} lies in several of column "
            f"{outer_name!r}. Name the columns of `by` from the smallest unit to the largest."
        )


def _of_single_clusters(
    clusters: Units, column: str, true: Places, names: Sequence[str]
) -> list[str]:
    """Return a line for each class that hangs on one cluster."""
    pairs = np.unique(np.stack([clusters.of, true], axis=1), axis=0)
    return [
        f"All rows of class {names[number]!r} are in one {column}: its figures do not tell how "
        "others of its kind differ."
        for number, count in enumerate(np.bincount(pairs[:, 1]).tolist())
        if count == 1
    ]


def _with_several(units: Units, values: npt.NDArray[np.integer[Any]]) -> Places:
    """Return the places of units whose tallies have more than one value."""
    pairs = np.unique(np.stack([units.of, values], axis=1), axis=0)
    return np.flatnonzero(np.bincount(pairs[:, 0]) > 1)


def _level(
    name: str,
    names: Sequence[str],
    true: Places,
    named: Places,
    counts: Counts,
    clusters: Places | None,
) -> EvaluationLevel:
    """Return the figures of pairs of label and prediction, counted, each in a cluster."""
    confusion = np.zeros((len(names), len(names)), np.int64)
    np.add.at(confusion, (true, named), counts)
    labels, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    right = np.diagonal(confusion)
    recall = _ratios(right, labels)
    figures = _ratios(right, predicted), recall, _ratios(2 * right, labels + predicted)
    occurring = [share for share in recall if share is not None]
    total = int(counts.sum())
    if clusters is None:
        # Rows are clusters, of two kinds: right and wrong.
        kinds, ones = np.array([1, 0]), np.ones(2, np.int64)
        accuracy = share_of_right(kinds, ones, np.array([right.sum(), total - right.sum()]))
    else:
        rows, hits = (np.zeros(clusters.max() + 1, np.int64) for _ in range(2))
        np.add.at(rows, clusters, counts)
        np.add.at(hits, clusters, counts * (true == named))
        there = rows > 0
        accuracy = share_of_right(hits[there], rows[there], np.ones(there.sum(), np.int64))
    return EvaluationLevel(
        name,
        total,
        accuracy,
        sum(occurring) / len(occurring),
        ClassShare(names[int(labels.argmax())], float(labels.max() / total)),
        tuple(map(ClassFigures, names, labels.tolist(), *figures)),
        confusion,
    )


def _ratios(parts: Counts, wholes: Counts) -> list[float | None]:
    """Return each part of its whole; None where that is 0 of 0."""
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [part / whole if whole else None for part, whole in pairs]

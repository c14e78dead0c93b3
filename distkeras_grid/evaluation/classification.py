"""The figures of predictions by row, and by unit: a source image, a specimen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import ConfigurationError, DataError, EmptyDataError
from distkeras_grid.evaluation.intervals import Figure, with_intervals
from distkeras_grid.metrics import confusion_from_counts

#: The level of the rows themselves. The other levels have the names of their columns.
ROW = "row"
Combine = Literal["mean", "vote"]
COMBINES: tuple[Combine, ...] = ("mean", "vote")

#: The figures of a class.
BY_CLASS = ("precision", "recall", "f1")

Counts = npt.NDArray[np.int64]


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
    # share among those with its label; and the harmonic mean of both
    precision: Figure
    recall: Figure
    f1: Figure


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
    balanced: Figure  # The mean recall of the classes that occur
    most_frequent: ClassShare  # What always naming the most frequent class would get right
    classes: tuple[ClassFigures, ...]
    # Counts; rows are labels, and columns are predictions; shape (classes, classes)
    confusion: Counts = field(compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON types."""
        by_class = [
            {"name": each.name, "count": each.count}
            | {name: getattr(each, name).to_json() for name in BY_CLASS}
            for each in self.classes
        ]
        return {
            "name": self.name,
            "count": self.count,
            "accuracy": self.accuracy.to_json(),
            "balanced_accuracy": self.balanced.to_json(),
            "most_frequent": {"name": self.most_frequent.name, "share": self.most_frequent.share},
            "classes": by_class,
            "confusion": self.confusion.tolist(),
        }


@dataclass(frozen=True)
class Evaluation:
    """Figures at each level, with intervals.

    ``print(evaluation)`` shows them as tables.

    Parameters
    ----------
    levels : tuple of Level
        The rows first.
    clusters : int
        How many clusters the intervals are computed from.
    cluster : str
        What a cluster is: the name of the last column, or ``row``.
    combine : {"mean", "vote"}
        How the predictions of a unit's rows are combined.
    notes : tuple of str
        What could not be computed, and why.
    """

    levels: tuple[EvaluationLevel, ...]
    clusters: int
    cluster: str
    combine: Combine
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """The share of rows whose prediction is correct."""
        return float(self.levels[0].accuracy.value or 0)

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
            "combine": self.combine,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        from distkeras_grid.evaluation.text import as_text

        return as_text(self)


def evaluate_tallies(
    tallies: Iterable[ClassCounts],
    by: Sequence[str],
    *,
    classes: Sequence[str] = (),
    combine: Combine = "mean",
) -> Evaluation:
    """Return the figures of predictions that were counted by unit, label and class.

    `by`: the names of the units, the smallest first. Each unit must lie in one unit of the next
    name; the last ones are the clusters of the intervals. Without any, rows are independent.
    """
    if combine not in COMBINES:
        raise ConfigurationError(f"combine must be one of {COMBINES}. Received: {combine!r}.")
    counted = list(tallies)
    if not counted:
        raise EmptyDataError("There are no rows to evaluate. Check the path and the filter.")
    # Refuses predictions and labels that name no class, and classes that do not exist.
    pairs = [(each.true, each.named, each.votes) for each in counted]
    size = len(confusion_from_counts(pairs, len(classes) or None))
    reckoning = _MetricsComputer(tuple(classes) or tuple(map(str, range(size))), combine)
    units = units_of([each.units for each in counted], by)
    clusters = units[-1] if units else None
    levels = [reckoning.of_rows(counted, clusters)]
    notes = _of_few_clusters(counted, clusters, reckoning.names, by)
    for name, level in zip(by, units, strict=True):
        mixed = _of_several_classes(level, counted)
        if len(mixed):
            notes.append(
                f"{len(mixed)} of {len(level.names)} in column {name!r} have rows of several "
                f"classes, such as {level.names[mixed[0]]!r}: they do not count in figures by "
                f"{name}."
            )
        if len(mixed) < len(level.names):
            levels.append(reckoning.of_units(name, counted, level, units[-1], mixed))
    return Evaluation(
        tuple(levels),
        clusters=len(clusters.names) if clusters else levels[0].count,
        cluster=by[-1] if by else ROW,
        combine=combine,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class ResamplingUnits:
    """The units of one level, numbered by their places in `names`."""

    names: list[str]
    of: npt.NDArray[np.intp]  # The unit that each tally belongs to; shape (tallies,)


def units_of(rows: Sequence[tuple[str | None, ...]], by: Sequence[str]) -> list[ResamplingUnits]:
    """Return the units of each level, and check that they are nested."""
    levels: list[ResamplingUnits] = []
    for place, name in enumerate(by):
        called = [_called(units, place, name) for units in rows]
        # The order must not depend on Spark's.
        known = sorted(set(called))
        places = {unit: number for number, unit in enumerate(known)}
        level = ResamplingUnits(
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


def _check_nested(
    inner: ResamplingUnits, outer: ResamplingUnits, inner_name: str, outer_name: str
) -> None:
    torn = _with_several(inner, outer.of)
    if len(torn):
        raise DataError(
            f"{inner.names[torn[0]]!r} in column {inner_name!r} lies in several of column "
            f"{outer_name!r}. Name the columns of `by` from the smallest unit to the largest."
        )


def _of_several_classes(
    units: ResamplingUnits, counted: Sequence[ClassCounts]
) -> npt.NDArray[np.intp]:
    return _with_several(units, np.array([each.true for each in counted]))


def _of_few_clusters(
    counted: Sequence[ClassCounts],
    clusters: ResamplingUnits | None,
    names: Sequence[str],
    by: Sequence[str],
) -> list[str]:
    """Return a line for each class that hangs on one or two clusters."""
    if clusters is None:
        return []
    true = np.array([each.true for each in counted])
    pairs = np.unique(np.stack([clusters.of, true], axis=1), axis=0)
    numbers = np.bincount(pairs[:, 1]).tolist()
    few = {
        1: f"in one {by[-1]}: its intervals do not tell how others of its kind differ.",
        2: f"in two of column {by[-1]!r}, which hardly tell how others of its kind differ.",
    }
    return [
        f"All rows of class {names[number]!r} are {few[count]}"
        for number, count in enumerate(numbers)
        if count in few
    ]


def _with_several(
    units: ResamplingUnits, values: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.intp]:
    """Return the places of units whose tallies have more than one value."""
    pairs = np.unique(np.stack([units.of, values], axis=1), axis=0)
    return np.flatnonzero(np.bincount(pairs[:, 0]) > 1)


@dataclass(frozen=True)
class _MetricsComputer:
    """Computes levels; the parameters are those of `evaluate_tallies`."""

    names: tuple[str, ...]
    combine: Combine

    def of_rows(
        self, counted: Sequence[ClassCounts], clusters: ResamplingUnits | None
    ) -> EvaluationLevel:
        """Return the figures row by row."""
        true = np.array([each.true for each in counted])
        named = np.array([each.named for each in counted])
        votes = np.array([each.votes for each in counted], np.int64)
        if clusters is not None:
            confusions = self._none(len(clusters.names))
            np.add.at(confusions, (clusters.of, true, named), votes)
            return self._level(ROW, confusions, np.ones(len(confusions), np.int64))
        # Independent rows are clusters, one kind for each pair of label and prediction.
        matrix = self._none(1)[0]
        np.add.at(matrix, (true, named), votes)
        true, named = np.nonzero(matrix)
        kinds = self._none(len(true))
        kinds[np.arange(len(true)), true, named] = 1
        return self._level(ROW, kinds, matrix[true, named])

    def of_units(
        self,
        name: str,
        counted: Sequence[ClassCounts],
        units: ResamplingUnits,
        clusters: ResamplingUnits,
        mixed: npt.NDArray[np.intp],
    ) -> EvaluationLevel:
        """Return the figures of units in clusters, but for those of mixed classes."""
        scores = np.zeros((len(units.names), len(self.names)))
        score = [each.score if self.combine == "mean" else each.votes for each in counted]
        named = np.array([each.named for each in counted])
        np.add.at(scores, (units.of, named), score)
        true, cluster = np.zeros((2, len(units.names)), np.intp)
        true[units.of] = [each.true for each in counted]
        cluster[units.of] = clusters.of
        confusions = self._none(len(clusters.names))
        pure = np.delete(np.arange(len(units.names)), mixed)
        np.add.at(confusions, (cluster[pure], true[pure], scores.argmax(axis=1)[pure]), 1)
        confusions = confusions[confusions.any(axis=(1, 2))]
        return self._level(name, confusions, np.ones(len(confusions), np.int64))

    def _none(self, count: int) -> Counts:
        return np.zeros((count, len(self.names), len(self.names)), np.int64)

    def _level(self, name: str, confusions: Counts, counts: Counts) -> EvaluationLevel:
        figures = with_intervals(confusions, counts)
        confusion: Counts = np.tensordot(counts, confusions, axes=1)
        labels = confusion.sum(axis=1)
        frequent = ClassShare(self.names[int(labels.argmax())], float(labels.max() / labels.sum()))
        by_class = zip(
            self.names,
            labels.tolist(),
            *(figures[figure] for figure in BY_CLASS),
            strict=True,
        )
        return EvaluationLevel(
            name,
            int(confusion.sum()),
            figures["accuracy"][0],
            figures["balanced"][0],
            frequent,
            tuple(ClassFigures(*each) for each in by_class),
            confusion,
        )

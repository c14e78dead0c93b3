"""An evaluation as tables of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from distkeras_grid.evaluation.levels import BY_CLASS, Evaluation, Level

HEAD = "label \\ predicted"


def as_text(evaluation: Evaluation) -> str:
    """Return the figures of all levels, those by class, and the confusion matrix of the rows."""
    first = evaluation.levels[0]
    names = [each.name for each in first.classes]
    parts = [
        f"accuracy {evaluation.accuracy:.4f} on {first.count} rows",
        _table(
            ("by", "count", "accuracy", "balanced accuracy"),
            [
                (level.name, f"{level.count:,}", str(level.accuracy), str(level.balanced))
                for level in evaluation.levels
            ],
        ),
        *(_by_class(level) for level in evaluation.levels),
        format_confusion(first.confusion, names),
        "\n".join([*_explained(evaluation), *evaluation.notes]),
    ]
    return "\n\n".join(parts)


def format_confusion(matrix: npt.NDArray[np.int64], names: Sequence[str] = ()) -> str:
    r"""Return a confusion matrix as text, labels in rows and predictions in columns.

    Parameters
    ----------
    matrix : ndarray of int64, shape (classes, classes)
    names : sequence of str
        Names of the classes; by default their numbers.

    Examples
    --------
    >>> import numpy as np
    >>> print(format_confusion(np.array([[5, 1], [0, 12]]), ["dark", "light"]))
    label \ predicted  dark  light
                 dark     5      1
                light     0     12
    """
    names = list(names) or list(map(str, range(len(matrix))))
    lines = [
        (name, *(str(count) for count in row)) for name, row in zip(names, matrix, strict=True)
    ]
    return _table((HEAD, *names), lines, right=True)


def _by_class(level: Level) -> str:
    lines = [
        (each.name, f"{each.count:,}", *(str(getattr(each, name)) for name in BY_CLASS))
        for each in level.classes
    ]
    return _table((f"class, by {level.name}", "count", "precision", "recall", "F1"), lines)


def _explained(evaluation: Evaluation) -> list[str]:
    units = [f"each {level.name}" for level in evaluation.levels[1:]]
    how = {"mean": "the largest mean prediction of its rows", "vote": "most votes of its rows"}
    drawn = (
        f"{evaluation.clusters:,} clusters (column {evaluation.cluster!r})"
        if units or evaluation.cluster != "row"
        else f"{evaluation.clusters:,} rows, as if they were independent"
    )
    lines = [
        f"In brackets: 95 % intervals from {evaluation.resamples:,} resamples of {drawn}, seed "
        f"{evaluation.seed}."
    ]
    if any(_without_interval(level) for level in evaluation.levels):
        lines.append("No interval: all resamples gave the same value, so it tells nothing.")
    if units:
        lines.append(f"The class of {' and '.join(units)} has {how[evaluation.combine]}.")
    return lines


def _without_interval(level: Level) -> bool:
    by_class = (getattr(each, name) for each in level.classes for name in BY_CLASS)
    figures = (level.accuracy, level.balanced, *by_class)
    return any(figure.value is not None and figure.low is None for figure in figures)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """Return aligned columns: the first on the left, or on the right if `right` is true."""
    rows = [head, *lines]
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]

    def cell(place: int, text: str) -> str:
        # Only counts need alignment on the right: figures with intervals have one width.
        to_right = right or place == 1
        return text.rjust(widths[place]) if to_right else text.ljust(widths[place])

    return "\n".join(
        "  ".join(cell(place, text) for place, text in enumerate(row)).rstrip() for row in rows
    )

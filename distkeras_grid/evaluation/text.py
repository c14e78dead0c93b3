"""An evaluation as tables of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from distkeras_grid.evaluation.classification import BY_CLASS, Evaluation, EvaluationLevel
from distkeras_grid.evaluation.regression import RegressionEvaluation

TITLES = {"mae": "MAE", "rmse": "RMSE", "r2": "R2"}
HEAD = "label \\ predicted"


def as_text(evaluation: Evaluation) -> str:
    """Return the figures of all levels, those by class, and the confusion matrix of the rows."""
    first = evaluation.levels[0]
    names = [each.name for each in first.classes]
    parts = [
        f"accuracy {evaluation.accuracy:.4f} on {first.count} rows",
        _table(
            ("by", "count", "accuracy", "most frequent class", "balanced accuracy"),
            [
                (
                    level.name,
                    f"{level.count:,}",
                    str(level.accuracy),
                    str(level.most_frequent),
                    str(level.balanced),
                )
                for level in evaluation.levels
            ],
        ),
        *(_by_class(level) for level in evaluation.levels),
        format_confusion(first.confusion, names),
        "\n".join([*_explained(evaluation), *evaluation.notes]),
    ]
    return "\n\n".join(parts)


def regression_as_text(evaluation: RegressionEvaluation) -> str:
    """Return the figures of all levels of a regression."""
    first = evaluation.levels[0]
    head = ", ".join(
        f"{title} {value:.4g}" if (value := getattr(first, name).value) is not None else title
        for name, title in TITLES.items()
    )
    lines = [
        (
            level.name,
            f"{level.count:,}",
            *(getattr(level, name).text(".4g") for name in TITLES),
        )
        for level in evaluation.levels
    ]
    explained = drawn_from(evaluation.clusters, evaluation.cluster)
    if len(lines) > 1:
        explained.append("A unit has the mean label and the mean prediction of its rows.")
    table = _table(("by", "count", *TITLES.values()), lines)
    return "\n\n".join([f"{head} on {first.count} rows", table, "\n".join(explained)])


def format_confusion(matrix: npt.NDArray[np.int64], names: Sequence[str] = ()) -> str:
    r"""Return a confusion matrix as text, labels in rows and predictions in columns.

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


def _by_class(level: EvaluationLevel) -> str:
    lines = [
        (each.name, f"{each.count:,}", *(str(getattr(each, name)) for name in BY_CLASS))
        for each in level.classes
    ]
    return _table((f"class, by {level.name}", "count", "precision", "recall", "F1"), lines)


def _explained(evaluation: Evaluation) -> list[str]:
    units = [f"each {level.name}" for level in evaluation.levels[1:]]
    how = {"mean": "the largest mean prediction of its rows", "vote": "most votes of its rows"}
    lines = drawn_from(evaluation.clusters, evaluation.cluster)
    if any(_without_interval(level) for level in evaluation.levels):
        lines.append(
            "No interval: the figure depends on one of them alone, or is the same without any."
        )
    if units:
        lines.append(f"The class of {' and '.join(units)} has {how[evaluation.combine]}.")
    return lines


def drawn_from(clusters: int, cluster: str) -> list[str]:
    """Return what the intervals are computed from, and how often they are right."""
    if cluster == "row":
        what = f"of {clusters:,} rows, as if they were independent"
        return [f"In brackets: 95 % intervals, from the figures {what}."]
    # Measured by the tests of `intervals` and `regression`.
    return [
        f"In brackets: 95 % intervals, from how {clusters:,} of column {cluster!r} differ.",
        "In simulations of 3 to 40 they held the truth in 90 to 100 % of cases.",
    ]


def _without_interval(level: EvaluationLevel) -> bool:
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

"""An evaluation as tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from distkeras_grid.evaluation.classification import Evaluation, EvaluationLevel

HEAD = "label \\ predicted"


def as_text(evaluation: Evaluation) -> str:
    """Return the figures of all levels, those by class, and the confusion matrix of the rows."""
    first = evaluation.levels[0]
    names = [each.name for each in first.classes]
    matrix = [
        (name, *map(str, row)) for name, row in zip(names, first.confusion.tolist(), strict=True)
    ]
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
                    f"{level.balanced:.3f}",
                )
                for level in evaluation.levels
            ],
        ),
        *(_by_class(level) for level in evaluation.levels),
        _table((HEAD, *names), matrix, right=True),
        "\n".join([*_explained(evaluation), *evaluation.notes]),
    ]
    return "\n\n".join(parts)


def _by_class(level: EvaluationLevel) -> str:
    lines = [
        (each.name, f"{each.count:,}", *map(format_figure, (each.precision, each.recall, each.f1)))
        for each in level.classes
    ]
    return _table((f"class, by {level.name}", "count", "precision", "recall", "F1"), lines)


def format_figure(value: float | None) -> str:
    """Return a share as text."""
    return "not defined" if value is None else f"{value:.3f}"


def _explained(evaluation: Evaluation) -> list[str]:
    if evaluation.cluster == "row":
        what = f"the figures of {evaluation.clusters:,} rows, as if they were independent"
    else:
        what = f"how {evaluation.clusters:,} of column {evaluation.cluster!r} differ"
    lines = [f"In brackets: 95 % intervals, from {what}."]
    if any(level.accuracy.low is None for level in evaluation.levels):
        lines.append("No interval: there is only one of them, or all say the same.")
    if units := [f"each {level.name}" for level in evaluation.levels[1:]]:
        lines.append(
            f"The class of {' and '.join(units)} has the largest mean prediction of its rows."
        )
    return lines


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """Return aligned columns: the first on the left, or on the right if `right` is true."""
    rows = [head, *lines]
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]

    def cell(place: int, text: str) -> str:
        # Only counts need alignment on the right: figures have one width.
        to_right = right or place == 1
        return text.rjust(widths[place]) if to_right else text.ljust(widths[place])

    return "\n".join(
        "  ".join(cell(place, text) for place, text in enumerate(row)).rstrip() for row in rows
    )

"""The report of a comparison: pictures and tables on one page."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distkeras_grid import plots
from distkeras_grid.pages import PageSection, write_page
from tests.benchmarks.studies.cells import Outcome
from tests.benchmarks.studies.nets import NETS
from tests.benchmarks.studies.results import write_whole
from tests.benchmarks.studies.summary import END, FIRST, Line, Spread, summarise

METHOD = """\
All sides train the same rows for the same epochs, from the same initial weights for each seed, \
with the same optimizer. local is Keras' fit with the stated batch, float32 arrays in memory, \
all cores and oneDNN's kernels, in a process of its own. A trainer's workers have the stated \
batch divided by their number, one core each, and read from Parquet through Spark; all else is \
the trainer's default.
Time runs from the first batch to the last update; start-up (processes, reading, compiling) is in \
a column of its own. Accuracy is that of the center on the whole validation split, found after the \
run: choose by it. The test split is looked at once, with the weights of the end; its accuracy is \
in a column of its own, for what you have chosen. \
Sides take turns, seed by seed. Bars in the pictures reach from the lowest to the highest seed."""


@dataclass(frozen=True)
class Finding:
    """A statement, and the figures for or against it.

    Parameters
    ----------
    statement, answer : str
    rows : list of list of str
        A table; its first row is the head.
    """

    statement: str
    answer: str
    rows: list[list[str]]


def write_report(
    folder: Path,
    outcomes: Sequence[Outcome],
    conditions: Mapping[str, Any],
    find: Callable[[Sequence[Line]], Sequence[Finding]] = lambda _: (),
) -> Path:
    """Write ``results.csv``, ``results.json``, the pictures and ``index.html``.

    Parameters
    ----------
    folder : Path
    outcomes : sequence of Outcome
    conditions : mapping
        What all have in common.
    find : callable, optional
        Returns what the figures say about statements; the page begins with it.

    Returns
    -------
    Path
        The page.
    """
    lines = summarise(outcomes)
    findings = find(lines)
    (folder / "results.csv").write_text(csv_text(outcomes), encoding="utf-8")
    content = {
        "conditions": dict(conditions),
        "cells": [outcome.to_json() for outcome in outcomes],
        "findings": [vars(finding) for finding in findings],
    }
    write_whole(folder / "results.json", content)
    pictures = draw_all(folder, lines, str(conditions["title"]), int(conditions["epochs"]))
    title = f"Trainers and plain Keras on {conditions['title']}"
    return write_page(folder, title, sections(lines, findings, pictures, outcomes, conditions))


def csv_text(outcomes: Sequence[Outcome]) -> str:
    """Return a CSV table with a header and one line for each cell.

    Parameters
    ----------
    outcomes : sequence of Outcome
    """
    rows = [outcome.to_json() for outcome in outcomes]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def draw_all(folder: Path, lines: Sequence[Line], title: str, epochs: int) -> list[PageSection]:
    """Draw time and accuracy over the batch size, for each model.

    Parameters
    ----------
    folder : Path
        Where the pictures go.
    lines : sequence of Line
    title : str
        What the data are called.
    epochs : int
        With more than one there are pictures of the end, too.
    """
    made = []
    for when in (FIRST, END) if epochs > 1 else (FIRST,):
        for what, label in (("seconds", "time [s]"), ("accuracy", "validation accuracy")):
            for model in sorted({line.model for line in lines}, reverse=True):
                told = f"{what.replace('seconds', 'time').capitalize()} {when}"
                heading = f"{told}, {NETS[model].title}, {title}"
                points = batch_points(lines, model, what, when)
                name = f"{'first' if when == FIRST else 'end'}-{what}-{model}.png"
                figure = plots.by_batch(points, label, heading)
                if what == "seconds":
                    figure.axes[0].set_ylim(bottom=0)
                figure.savefig(folder / name)
                made.append(PageSection(heading, image=name))
    return made


def batch_points(
    lines: Sequence[Line], model: str, what: str, when: str
) -> dict[str, list[tuple[int, float, float, float]]]:
    """Return mean, lowest and highest value for each side and batch size.

    Parameters
    ----------
    lines : sequence of Line
    model : str
    what : {"seconds", "accuracy"}
    when : str
        `FIRST` or `END`.
    """
    points: dict[str, list[tuple[int, float, float, float]]] = {}
    for line in lines:
        if line.model == model:
            spread: Spread = getattr(line, what)[when]
            point = (line.batch, spread.mean, spread.lowest, spread.highest)
            points.setdefault(line.side, []).append(point)
    return points


def sections(
    lines: Sequence[Line],
    findings: Sequence[Finding],
    pictures: Sequence[PageSection],
    outcomes: Sequence[Outcome],
    conditions: Mapping[str, Any],
) -> list[PageSection]:
    """Return the page's sections: conditions, findings, pictures, all figures, failures."""
    told = [[str(name), str(value)] for name, value in conditions.items()]
    failed = [outcome for outcome in outcomes if outcome.error]
    failures = [
        PageSection(
            "Runs that failed",
            rows=[["run", "error"], *([o.cell.describe(), o.error] for o in failed)],
        )
    ]
    told_noise = noise(lines, int(conditions["validation_rows"]))
    return [
        PageSection("What ran", text=METHOD, rows=[["condition", "value"], *told]),
        *(PageSection(each.statement, text=each.answer, rows=each.rows) for each in findings),
        *pictures,
        PageSection("All figures", text=told_noise, rows=table(lines)),
        *(failures if failed else []),
    ]


def noise(lines: Sequence[Line], rows: int) -> str:
    """Return a sentence on the sampling error of an accuracy."""
    worst = max(
        (line.accuracy[END].mean * (1 - line.accuracy[END].mean) for line in lines), default=0.0
    )
    return (
        "Means of the seeds, in brackets the lowest and the highest. One standard deviation of an "
        f"accuracy on {rows:,} validation rows is up to {100 * (worst / rows) ** 0.5:.1f} points: "
        "smaller differences say nothing."
    )


def table(lines: Sequence[Line]) -> list[list[str]]:
    """Return all figures as a table with a header row."""
    head = ["model", "batch", "side", "window", "seeds", "start-up s"]
    head += [f"{what} {when}" for when in (FIRST, END) for what in ("time s", "accuracy")]
    head += ["test accuracy"]
    rows = [head]
    for line in lines:
        row = [line.model, str(line.batch), line.side]
        row += ["" if line.window is None else str(line.window), str(line.seeds)]
        row.append(_told(line.start, 1))
        for when in (FIRST, END):
            row += [_told(line.seconds[when], 2), _told(line.accuracy[when], 4)]
        row.append(_told(line.tested, 4))
        rows.append(row)
    return rows


def _told(spread: Spread, digits: int) -> str:
    mean, lowest, highest = (
        f"{value:.{digits}f}" for value in (spread.mean, spread.lowest, spread.highest)
    )
    return mean if lowest == highest else f"{mean} ({lowest} to {highest})"

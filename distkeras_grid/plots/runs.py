"""Figures of training runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.history import History
from distkeras_grid.plots.style import (
    MAX_NAMED,
    add_legend,
    check_some,
    color_of,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
#: Start, duration and color of a bar.
Bar = tuple[float, float, Any]

AXES = ("seconds", "samples")


def curves(
    histories: Mapping[str, History | Points],
    x: Literal["seconds", "samples"] = "seconds",
    metric: str = "loss",
) -> Figure:
    """Compare runs by one metric.

    Parameters
    ----------
    histories : mapping of str to History, or to sequence of (float, float)
        A name for each run, best with its cores (``"ADAG, 2 workers, 2 cores"``); points
        ``(x, value)`` serve for runs that have no `History`.
    x : {"seconds", "samples"}, default "seconds"
        Time since the first batch [s], or samples trained.
    metric : str, default "loss"
        A key of ``History.history``, such as ``val_accuracy``.

    Raises
    ------
    ConfigurationError
        If a history has no such metric.
    EmptyDataError
        If there is nothing to draw.

    Examples
    --------
    >>> figure = curves({"fit, 2 cores": [(1.0, 0.5), (2.0, 0.7)]}, metric="val_accuracy")
    >>> figure.axes[0].get_ylabel()
    'validation accuracy'
    """
    if x not in AXES:
        raise ConfigurationError(f"x must be 'seconds' or 'samples'. Received: {x!r}.")
    check_some(histories, "runs")
    figure, axes = new_figure()
    simulated = [_is_simulated(run) for run in histories.values()]
    for number, (name, run) in enumerate(histories.items()):
        points = run.points(metric, x) if isinstance(run, History) else run
        check_some(points, f"points of {name!r}")
        horizontal, vertical = np.asarray(points, dtype=float).T
        # A marker of its own for each run: colors alone do not survive a gray printer.
        axes.plot(
            horizontal,
            vertical,
            color=color_of(number, len(histories)),
            marker="osD^vPX"[number % 7],
            markersize=5,
            # Where all runs are simulated, the axis says so.
            label=f"{name} (simulated time)" if simulated[number] and not all(simulated) else name,
        )
    axes.set_xlabel("samples trained" if x == "samples" else _time_title(*histories.values()))
    axes.set_ylabel(_spoken(metric))
    axes.set_xlim(left=0)
    axes.margins(x=0.03)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    add_legend(figure, axes)
    axes.set_title(f"{_spoken(metric).capitalize()} by {'time' if x == 'seconds' else 'samples'}")
    return figure


def timeline(history: History) -> Figure:
    """Draw when each worker computed: a bar a window, colored by the worker's pass over its rows.

    What is white between the bars is exchange and waiting. Without rounds the passes of fast
    workers are ahead of the run's epochs.

    Parameters
    ----------
    history : History
        With at least one window.
    """
    check_some(history.records, "windows")
    from matplotlib.patches import Patch

    figure, axes = new_figure()
    workers = sorted({record.worker for record in history.records})
    passes = sorted({record.epoch for record in history.records})
    colors = {epoch: color_of(number, len(passes)) for number, epoch in enumerate(passes)}
    began = min(record.started for record in history.records)
    rows = {
        f"worker {worker}": [
            (window.started - began, window.seconds, colors[window.epoch])
            for window in history.select(worker=worker)
        ]
        for worker in workers
    }
    _draw_bars(axes, rows)
    axes.set_xlim(left=0)
    axes.set_xlabel(_time_title(history))
    axes.set_title("Windows of each worker over time")
    if len(passes) <= MAX_NAMED:
        add_legend(figure, axes, [Patch(color=colors[e], label=f"pass {e}") for e in passes])
    return figure


def _draw_bars(axes: Axes, rows: Mapping[str, Sequence[Bar]]) -> None:
    """Draw a row of bars for each name, from the top."""
    for place, bars in enumerate(rows.values()):
        axes.broken_barh(
            [(start, seconds) for start, seconds, _ in bars],
            (place - 0.35, 0.7),
            facecolors=[color for _, _, color in bars],
            edgecolor="white",
            # Edges of many bars would cover the bars themselves.
            linewidth=0.5 if len(bars) <= 200 else 0,
        )
    every = math.ceil(len(rows) / 25)
    axes.set_yticks(range(0, len(rows), every), list(rows)[::every])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def _is_simulated(run: History | Points) -> bool:
    return isinstance(run, History) and run.params.get("time") == "simulated"


def _time_title(*runs: History | Points) -> str:
    time = "simulated time" if all(map(_is_simulated, runs)) else "time"
    return f"{time} since the first batch [s]"


def _spoken(metric: str) -> str:
    name = metric.removeprefix("val_").replace("_", " ")
    return f"validation {name}" if metric.startswith("val_") else f"training {name}"

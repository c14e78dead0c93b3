"""Figures of runs against their batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from distkeras_grid.plots.style import add_legend, check_some, color_of, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Batch size, and of several seeds mean, lowest and highest.
BatchPoint = tuple[int, float, float, float]


def by_batch(sides: Mapping[str, Sequence[BatchPoint]], label: str, title: str) -> Figure:
    """Draw one figure of several sides against the batch size.

    Parameters
    ----------
    sides : mapping of str to sequence of (int, float, float, float)
        A name for each side; of each batch size the mean of its seeds, the lowest and the highest.
    label : str
        Label of the vertical axis, with its unit.
    title : str

    Raises
    ------
    EmptyDataError
        If there is nothing to draw.

    Examples
    --------
    >>> figure = by_batch({"fit": [(32, 9.5, 9.1, 10.0), (128, 3.2, 3.0, 3.6)]}, "time [s]", "MLP")
    >>> figure.axes[0].get_xlabel()
    'batch size'
    """
    check_some(sides, "sides")
    figure, axes = new_figure()
    batches = sorted({point[0] for points in sides.values() for point in points})
    for number, (name, points) in enumerate(sides.items()):
        check_some(points, f"points of {name!r}")
        batch, mean, lowest, highest = np.asarray(sorted(points), dtype=float).T
        # Side by side, so that the bars of one batch size do not cover each other.
        shift = 2 ** (0.06 * (number - (len(sides) - 1) / 2))
        axes.errorbar(
            batch * shift,
            mean,
            yerr=(mean - lowest, highest - mean),
            color=color_of(number, len(sides)),
            marker="osD^vPX"[number % 7],
            markersize=7,
            capsize=3,
            linewidth=1.5,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.minorticks_off()
    axes.set_xlabel("batch size")
    axes.set_ylabel(label)
    axes.set_title(title)
    add_legend(figure, axes)
    return figure

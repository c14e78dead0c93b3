"""What all figures share: size, colors, legend."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import EmptyDataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, "Color universal design" (2008), without their yellow, too faint for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MAX_NAMED = 12  # entries that a legend can hold below a figure


@functools.cache
def figure_class() -> type[Figure]:
    """Return the class of all figures; defined at first use, for Matplotlib is slow to import."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that Jupyter shows without pyplot having been imported."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return NotebookFigure


def new_figure() -> tuple[Figure, Axes]:
    """Return a figure of 1200 x 800 pixels with one pair of axes."""
    figure = figure_class()(figsize=(12, 8), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True, color="#d9d9d9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for text, size in ((axes.xaxis.label, 12), (axes.yaxis.label, 12), (axes.title, 14)):
        text.set_fontsize(size)
    axes.tick_params(labelsize=11)
    return figure, axes


def add_legend(figure: Figure, axes: Axes, handles: Sequence[Any] | None = None) -> None:
    """Name the lines below the axes, where the legend hides nothing."""
    if handles is None:
        handles = axes.get_legend_handles_labels()[0]
    if len(handles) > MAX_NAMED:
        last = len(handles) - 1
        handles = [handles[round(last * i / (MAX_NAMED - 1))] for i in range(MAX_NAMED)]
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), 6, 130 // (longest + 8)))
    figure.legend(
        handles=list(handles), loc="outside lower center", ncols=columns, frameon=False, fontsize=11
    )


def color_of(number: int, total: int) -> str:
    """Return a color for one of `total` things that people of any color vision can tell apart."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if total <= len(PALETTE):
        return PALETTE[number]
    # Made for all kinds of color vision (Nunez, Anderton and Renslow, 2018).
    return str(to_hex(colormaps["cividis"](0.95 * number / (total - 1))))


def check_some(items: Sequence[Any] | Mapping[Any, Any], what: str) -> None:
    """Raise EmptyDataError if there are no `what`."""
    if not len(items):
        raise EmptyDataError(f"There is nothing to draw. Received: no {what}.")

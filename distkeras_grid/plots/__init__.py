"""Figures of training runs and of tiles.

Each function returns a ``matplotlib.figure.Figure`` of 1200 x 800 pixels that belongs to no global
state: it shows itself as the last line of a notebook's cell, and ``figure.savefig(path)`` writes
it. Matplotlib is imported when the first figure is drawn.
"""

from distkeras_grid.plots.images import contact_sheet
from distkeras_grid.plots.runs import curves, timeline

__all__ = [
    "contact_sheet",
    "curves",
    "timeline",
]

"""Figures of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.plots.style import check_some, figure_class

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Image = npt.NDArray[Any]


def contact_sheet(
    tiles: Sequence[Image], titles: Sequence[str] | None = None, heading: str = ""
) -> Figure:
    """Show images in rows.

    Parameters
    ----------
    tiles : sequence of ndarray
        Each ``(height, width)``, ``(height, width, 1)`` or ``(height, width, 3)``; uint8, or
        floats from 0 to 1.
    titles : sequence of str, optional
        One above each.
    heading : str, default ""
        Above all.

    Raises
    ------
    ConfigurationError
        If there are not as many titles as images.
    EmptyDataError
        If there are none.
    """
    check_some(tiles, "images")
    titles = [""] * len(tiles) if titles is None else titles
    if len(titles) != len(tiles):
        raise ConfigurationError(
            f"{len(tiles)} images need as many titles. Received: {len(titles)}."
        )
    figure = figure_class()(figsize=(12, 8), dpi=100, layout="constrained")
    # As many columns as make the cells about square on a page of 3 to 2.
    columns = math.ceil(math.sqrt(1.5 * len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    grid = figure.subplots(rows, columns, squeeze=False)
    width = max(6, 110 // columns)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, tile, title in zip(grid.flat, tiles, titles, strict=False):
        _show_image(axes, tile)
        short = title if len(title) <= width else title[: width - 3] + "..."
        axes.set_title(short, fontsize=max(6, min(11, 66 // columns)), pad=3)
    if heading:
        figure.suptitle(heading, fontsize=14)
    return figure


def _show_image(axes: Axes, image: Image) -> None:
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3)):
        raise ConfigurationError(
            "An image has shape (height, width) or (height, width, 1 or 3). Received: "
            f"{image.shape}."
        )
    height, width = image.shape[:2]
    gray = image.ndim == 2 or image.shape[2] == 1
    top = np.iinfo(image.dtype).max if image.dtype.kind in "iu" else 1.0
    axes.imshow(
        image.reshape(height, width) if gray else image,
        cmap="gray" if gray else None,
        vmin=0,
        vmax=top,
        extent=(0, width, height, 0),
    )

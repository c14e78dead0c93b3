"""Figures of images and of what was predicted from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.plots.style import (
    check_some,
    figure_class,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Image = npt.NDArray[Any]


def confusion_matrix(matrix: npt.ArrayLike, classes: Sequence[str] | None = None) -> Figure:
    """Draw a confusion matrix, each row as shares of its label.

    Parameters
    ----------
    matrix : array_like, shape (k, k)
        Counts; row: the label, column: the prediction.
    classes : sequence of str, optional
        Names of the k classes.

    Raises
    ------
    ConfigurationError
        If the matrix is not square, or there are not k names.

    Examples
    --------
    >>> figure = confusion_matrix([[8, 2], [1, 9]], ["granite", "slate"])
    >>> figure.axes[0].get_title()
    'Confusion matrix: 17 of 20 right (85.0%)'
    """
    counts = np.asarray(matrix)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        raise ConfigurationError(f"A confusion matrix has shape (k, k). Received: {counts.shape}.")
    size = len(counts)
    names = list(classes) if classes is not None else [str(number) for number in range(size)]
    if len(names) != size:
        raise ConfigurationError(f"{size} classes need {size} names. Received: {names}.")
    figure, axes = new_figure()
    rows = counts.sum(axis=1, keepdims=True)
    shares = np.divide(100 * counts, rows, out=np.zeros(counts.shape), where=rows > 0)
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    if size <= 15:
        _write_cells(axes, counts, shares)
    if size <= 40:
        axes.set_xticks(range(size), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(size), names)
    axes.grid(visible=False)
    axes.set_xlabel("prediction")
    axes.set_ylabel("label")
    figure.colorbar(picture, ax=axes, label="share of the label's rows [%]")
    right, total = int(np.trace(counts)), int(counts.sum())
    accuracy = f": {right:,} of {total:,} right ({100 * right / total:.1f}%)" if total else ""
    axes.set_title(f"Confusion matrix{accuracy}")
    return figure


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


def _write_cells(axes: Axes, counts: npt.NDArray[Any], shares: npt.NDArray[np.float64]) -> None:
    size = 13 if len(counts) <= 6 else 8
    for (row, column), count in np.ndenumerate(counts):
        share = shares[row, column]
        text = f"{count:,}\n{share:.0f}%" if len(counts) <= 10 else f"{count:,}"
        color = "white" if share > 55 else "black"
        axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)


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

"""How flat, sharp and overexposed a tile is: pure. All sums are of whole numbers, and exact."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.images.plane_selection import Pixels

# A cell of about 16x16 pixels is flat if its standard deviation is below 2 % of the full range:
# above sensor noise, below any texture. Brightness does not matter: backgrounds may be black.
CELL = 16
FLAT = 0.02


@dataclass(frozen=True, slots=True)
class Quality:
    """Measured properties of the pixels of one tile: each is a column of this name."""

    # Part of the cells of about 16x16 pixels that vary by less than 2 % of the full range in every
    # channel
    bg_fraction: float
    mean: float  # mean and std: Mean and standard deviation of the values of all channels
    std: float
    # Mean absolute difference between neighbouring pixels, as a part of the full range
    focus: float
    saturated: float  # Part of the values that are white, the largest possible value


#: The names of these columns.
OF_PIXELS = tuple(each.name for each in fields(Quality))


def _cell_edges(tile: int) -> NDArray[np.int64]:
    """Return where cells begin and end in a tile."""
    cells = max(1, round(tile / CELL))
    return np.rint(np.linspace(0, tile, cells + 1)).astype(np.int64)


def turns_with_tile(tile: int) -> bool:
    """Tell whether a tile of this side has the same quality after a quarter turn, bit for bit.

    Its cells must lie the same way from both sides.

    Examples
    --------
    >>> turns_with_tile(256), turns_with_tile(33)
    (True, False)
    """
    edges = _cell_edges(tile)
    return bool((edges + edges[::-1] == tile).all())


def quality_of(pixels: Pixels, white: int) -> Quality:
    """Return the quality of a tile of uint8 or uint16.

    `white`: the largest value that images can have.

    Examples
    --------
    >>> quality_of(np.full((64, 64), 255, np.uint8), 255)
    Quality(bg_fraction=1.0, mean=255.0, std=0.0, focus=0.0, saturated=1.0)
    """
    side, count = len(pixels), pixels.size
    edges = _cell_edges(side)
    widths = np.diff(edges)
    areas = (widths[:, np.newaxis] * widths)[:, :, np.newaxis]
    values, squares = _sums_of_cells(pixels, edges)
    means = values / areas
    variances = squares / areas - means * means
    mean, mean_square = float(values.sum()) / count, float(squares.sum()) / count
    pairs = [(pixels[:, 1:], pixels[:, :-1]), (pixels[1:], pixels[:-1])] if side > 1 else []
    differences = sum(cv2.norm(one, other, cv2.NORM_L1) for one, other in pairs)
    return Quality(
        bg_fraction=float((variances < (FLAT * white) ** 2).all(axis=2).mean()),
        mean=mean,
        std=math.sqrt(max(0.0, mean_square - mean * mean)),
        focus=differences / max(1, 2 * (count - count // side)) / white,
        saturated=int(np.count_nonzero(pixels >= white)) / count,
    )


def _sums_of_cells(pixels: Pixels, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return sums of values and of squares, array [2, cells down, cells across, channels]."""
    side = len(pixels)
    flat = pixels.reshape(side, -1)
    is_narrow = pixels.dtype == np.uint8
    squares = np.multiply(flat, flat, dtype=np.uint16 if is_narrow else np.float64)
    # Sums of this few uint8 values are exact in float32.
    exact = cv2.CV_32F if is_narrow else cv2.CV_64F
    rows = [
        cv2.reduce(each[top:bottom], 0, cv2.REDUCE_SUM, dtype=exact)
        for each in (flat, squares)
        for top, bottom in pairwise(edges.tolist())
    ]
    by_row = np.array(rows, np.float64).reshape(2, len(edges) - 1, side, -1)
    sums: NDArray[np.float64] = np.add.reduceat(by_row, edges[:-1], axis=2)
    return sums

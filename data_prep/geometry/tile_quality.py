"""How flat, sharp and overexposed tiles are, computed for all tiles of a turned image at once.

Tiles that overlap share pixels. Sums over the pixels are taken once, as the rows of the turned
image arrive, in pieces between all lines at which a tile or one of its cells begins or ends. A tile
then adds up whole pieces.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.geometry.grid import Positions
from data_prep.images.plane_selection import Pixels

# A cell of about 16x16 pixels is flat if its standard deviation is below 2 % of the full range:
# above sensor noise, below any texture. Brightness does not matter: backgrounds may be black.
CELL = 16
FLAT = 0.02
# Sums over pixels: of values, squares, differences to the left, differences upwards, and of the
# number of white values.
VALUE, SQUARE, ACROSS, DOWN, WHITE = range(5)

Sums = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quality:
    """Measured properties of the pixels of one tile."""

    # Part of the cells of about 16x16 pixels that vary by less than 2 % of the full range in every
    # channel
    flat: float
    mean: float  # mean and std: Mean and standard deviation of the values of all channels
    std: float
    # Mean absolute difference between neighbouring pixels, as a part of the full range
    focus: float
    saturated: float  # Part of the values that are white, the largest possible value


def _cell_edges(tile: int) -> NDArray[np.int64]:
    """Return where cells begin and end in a tile."""
    cells = max(1, round(tile / CELL))
    return np.rint(np.linspace(0, tile, cells + 1)).astype(np.int64)


def turns_with_tile(tile: int) -> bool:
    """Tell whether a tile of this side has the same quality after a quarter turn, bit for bit.

    Its cells must lie the same way from both sides. All sums are whole numbers, exact in any order.

    Examples
    --------
    >>> turns_with_tile(256), turns_with_tile(33)
    (True, False)
    """
    edges = _cell_edges(tile)
    return bool((edges + edges[::-1] == tile).all())


class FrameQuality:
    """The quality of all tiles of one turned image.

    `positions`: left and top edges of the tiles, sorted by rows.
    """

    def __init__(self, positions: Positions, tile: int, white: int, channels: int) -> None:
        self._positions = positions
        self._tile = tile
        self._white = white
        # Where cells begin and end in a tile, and where differences that stay inside it begin.
        self._cells = _cell_edges(tile)
        self._columns, self._rows = (self._lines(each) for each in positions)
        self._channels = channels
        # Sums for each piece of rows, as long as a tile needs it: kind, channel, piece of columns.
        self._sums: dict[int, Sums] = {}

    def _lines(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        inside = np.append(self._cells, 1)
        return np.unique(np.unique(starts)[:, np.newaxis] + inside)

    def add(self, top: int, rows: Pixels, above: Pixels | None) -> None:
        """Add new rows of the turned image.

        `rows`: pixels from the left edge of the leftmost tile to the right edge of the rightmost
        one.
        """
        bottom = top + len(rows)
        lines = self._rows[(self._rows > top) & (self._rows < bottom)]
        edges = [top, *lines.tolist(), bottom]
        pieces = np.searchsorted(self._rows, edges[:-1], side="right") - 1
        summed = self._summed(rows, above, [edge - top for edge in edges])
        for piece, sums in zip(pieces.tolist(), summed, strict=True):
            before = self._sums.get(piece)
            self._sums[piece] = sums if before is None else before + sums

    def _summed(self, rows: Pixels, above: Pixels | None, edges: list[int]) -> Sums:
        """Return sums over pieces of rows and columns, array [pieces, sums, channels, columns]."""
        channels = self._channels
        flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
        across, down = np.zeros_like(flat), np.zeros_like(flat)
        across[:, channels:] = cv2.absdiff(flat[:, channels:], flat[:, :-channels])
        if len(flat) > 1:
            down[1:] = cv2.absdiff(flat[1:], flat[:-1])
        if above is not None:
            down[:1] = cv2.absdiff(flat[:1], above.reshape(1, -1))
        white = cv2.compare(flat, float(self._white), cv2.CMP_GE)
        # Sums of this few uint8 values are exact in float32.
        exact = cv2.CV_32F if flat.dtype == np.uint8 else cv2.CV_64F
        wide = np.uint16 if flat.dtype == np.uint8 else np.float64
        sums = np.empty((len(edges) - 1, WHITE + 1, flat.shape[1]), np.float64)
        kinds = (flat, np.multiply(flat, flat, dtype=wide), across, down, white)
        for piece, (start, stop) in enumerate(itertools.pairwise(edges)):
            for kind, values in enumerate(kinds):
                sums[piece, kind] = cv2.reduce(values[start:stop], 0, cv2.REDUCE_SUM, dtype=exact)
        sums[:, WHITE] /= 255
        by_channel = sums.reshape(*sums.shape[:2], -1, channels).swapaxes(2, 3)
        starts = self._columns[:-1] - self._columns[0]
        totals: Sums = np.add.reduceat(np.ascontiguousarray(by_channel), starts, axis=3)
        return totals

    def of_row(self, top: int) -> list[Quality]:
        """Return the quality of the tiles that begin at row `top`, from the left.

        All their rows must have been added; `top` never decreases from call to call.
        """
        x = self._positions[0][self._positions[1] == top]
        side = self._tile
        values = side * side * self._channels
        lines = np.searchsorted(self._rows, top + self._cells)
        for piece in [piece for piece in self._sums if piece < lines[0]]:
            del self._sums[piece]
        block = np.stack([self._sums[piece] for piece in range(lines[0], lines[-1])])
        cells = self._in_cells(x, block[:, : SQUARE + 1], lines - lines[0])
        pixels = np.diff(self._cells)
        counts = pixels[:, np.newaxis, np.newaxis, np.newaxis] * pixels
        means = cells[:, VALUE] / counts
        variances = cells[:, SQUARE] / counts - means * means
        flat = (variances < (FLAT * self._white) ** 2).all(axis=1).mean(axis=(0, 2))
        value, square = cells.sum(axis=(0, 2, 4)) / values
        white = self._between(x, x + side, block)[WHITE] / values
        std = np.sqrt(np.maximum(0.0, square - value * value))
        across = self._between(x + 1, x + side, block)[ACROSS]
        # The differences of the first row, which is the first piece, are to the row above the tile.
        down = self._between(x, x + side, block[1:])[DOWN]
        pairs = max(1, 2 * side * (side - 1) * self._channels)
        focus = (across + down) / pairs / self._white
        each = (column.tolist() for column in (flat, value, std, focus, white))
        return [Quality(*measures) for measures in zip(*each, strict=True)]

    def _in_cells(self, x: NDArray[np.int64], block: Sums, lines: NDArray[np.int64]) -> Sums:
        """Return the sums in each cell, array [cells down, sums, channels, tiles, cells across]."""
        columns = np.searchsorted(self._columns, x[:, np.newaxis] + self._cells)
        by_row = np.add.reduceat(block, lines[:-1], axis=0)
        cells: Sums = np.diff(_running(by_row)[..., columns], axis=-1)
        return cells

    def _between(self, left: NDArray[np.int64], right: NDArray[np.int64], block: Sums) -> Sums:
        """Return the sums of a block between columns, array [sums, tiles]."""
        running = _running(block.sum(axis=0).sum(axis=1))
        starts, stops = np.searchsorted(self._columns, left), np.searchsorted(self._columns, right)
        sums: Sums = running[:, stops] - running[:, starts]
        return sums


def _running(values: Sums) -> Sums:
    """Return the sums of all values before each place along the last axis."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def quality_of(pixels: Pixels, white: int) -> Quality:
    """Return the quality of a single tile.

    Examples
    --------
    >>> quality_of(np.full((64, 64), 255, np.uint8), 255)
    Quality(flat=1.0, mean=255.0, std=0.0, focus=0.0, saturated=1.0)
    """
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    origin = (np.zeros(1, np.int64), np.zeros(1, np.int64))
    frame = FrameQuality(origin, len(pixels), white, channels)
    frame.add(0, pixels, None)
    return frame.of_row(0)[0]

"""Images that are made smaller part by part: memory holds a band of the large image.

The values are those of ``cv2.resize(..., interpolation=cv2.INTER_AREA)`` on the whole image, bit
for bit. OpenCV can only begin at the edge of an image, so its sums are repeated here for any
rectangle, in the same order and with the same single precision: first along the rows, then down the
columns. Where both sides shrink by whole numbers, OpenCV computes other sums, which begin anew at
each pixel of the result; then OpenCV is called for each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.picture import Pixels
from data_prep.raster import BAND_BYTES, Raster

# Bytes of the large image that are decoded at once; their sums take up to eight times as many.
GROUP_BYTES = 8 << 20
# OpenCV leaves out parts of a pixel that are not larger.
LEAST_PART = 1e-3


@dataclass(frozen=True)
class Areas:
    """Which pixels of a line are averaged for each pixel of a shorter line.

    Parameters
    ----------
    first, count : int array
        The first of these pixels, and their number, by the number of the pixel of the shorter line.
    begin, middle, end : float32 array
        Weights of the first, of those between, and of the last; of one alone, that of the first.
    """

    first: NDArray[np.int64]
    count: NDArray[np.int64]
    begin: NDArray[np.float32]
    middle: NDArray[np.float32]
    end: NDArray[np.float32]

    @classmethod
    def of(cls, source: int, target: int) -> Areas:
        """Return the areas for lines of these lengths, as OpenCV computes them."""
        scale = _scale(source, target)
        start = np.arange(target) * scale
        stop = start + scale
        cell = np.minimum(scale, source - start)
        # Pixels from the first to before the last of these two lie in the area as a whole.
        whole_stop = np.minimum(np.floor(stop).astype(np.int64), source - 1)
        whole_start = np.minimum(np.ceil(start).astype(np.int64), whole_stop)
        before, after = whole_start - start, stop - whole_stop
        has_before, has_after = before > LEAST_PART, after > LEAST_PART
        whole, first = 1.0 / cell, whole_start - has_before
        last = np.where(has_after, np.minimum(np.minimum(after, 1.0), cell) / cell, whole)
        begin = np.where(has_before, before / cell, np.where(whole_stop > whole_start, whole, last))
        weights = (each.astype(np.float32) for each in (begin, whole, last))
        return cls(first, whole_stop + has_after - first, *weights)

    def within(self, start: int, stop: int) -> Areas:
        """Return the areas of some pixels of the shorter line."""
        return Areas(*(each[start:stop] for each in vars(self).values()))

    @property
    def edges(self) -> tuple[int, int]:
        """The pixels of the longer line that are needed: the first, and the one after the last."""
        return int(self.first[0]), int(self.first[-1] + self.count[-1])

    def steps(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]]:
        """Yield what is added one after the other.

        Yields
        ------
        targets : int array
            Pixels of the shorter line.
        sources : int array
            A pixel of the longer line for each, counted from the first that is needed.
        weights : float32 array
        """
        for step in range(int(self.count.max())):
            (targets,) = np.nonzero(self.count > step)
            is_last = self.count[targets] == step + 1
            weights = np.where(is_last, self.end[targets], self.middle[targets])
            sources = self.first[targets] + step - self.edges[0]
            yield targets, sources, weights if step else self.begin[targets]


class Shrunk:
    """A raster made smaller by averages of areas; `data_prep.raster.Regions` of another raster.

    Parameters
    ----------
    raster : Raster
        The large image.
    width, height : int
        The new size, pixels: on no side larger than the image.
    """

    def __init__(self, raster: Raster, width: int, height: int) -> None:
        self._raster = raster
        self.shape = (height, width, raster.shape[2])
        self.dtype = raster.dtype
        row_bytes = width * raster.shape[2] * raster.itemsize
        # Whole rows, and many, because each part of the file at their edges is decoded twice.
        self.grain = (min(height, max(1, BAND_BYTES // row_bytes)), width)
        source_height, source_width = raster.shape[:2]
        self._down = Areas.of(source_height, height)
        self._across = Areas.of(source_width, width)
        scales = _scale(source_width, width), _scale(source_height, height)
        self._factors = None
        # Then OpenCV would take its other sums for the pixels of a row.
        self._has_whole_step = scales[0] == round(scales[0])
        if all(scale == round(scale) for scale in scales):
            self._factors = round(scales[0]), round(scales[1])

    def read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        """Compute a rectangle of the smaller image, array [height, width, channels]."""
        pixels = np.empty((bottom - top, right - left, self.shape[2]), self.dtype)
        for start, stop in self._groups(left, top, right, bottom):
            into = pixels[start - top : stop - top]
            if self._factors is not None:
                self._by_opencv(into, left, start, right, stop, self._factors)
            else:
                self._by_sums(
                    into, self._across.within(left, right), self._down.within(start, stop)
                )
        return pixels

    def close(self) -> None:
        """Close what reads the file."""
        self._raster.close()

    def _groups(self, left: int, top: int, right: int, bottom: int) -> Iterator[tuple[int, int]]:
        """Yield rows of the smaller image that need few bytes of the large one."""
        first, end = self._across.within(left, right).edges
        row_bytes = (end - first) * self.shape[2] * self._raster.itemsize
        scale = _scale(self._raster.shape[0], self.shape[0])
        rows = max(1, int(GROUP_BYTES / row_bytes / scale))
        return ((start, min(bottom, start + rows)) for start in range(top, bottom, rows))

    def _by_opencv(
        self, into: Pixels, left: int, top: int, right: int, bottom: int, factors: tuple[int, int]
    ) -> None:
        x, y = factors
        large = self._raster.decode(left * x, top * y, right * x, bottom * y)
        size = right - left, bottom - top
        into[:] = cv2.resize(large, size, None, 0, 0, cv2.INTER_AREA).reshape(into.shape)

    def _by_sums(self, into: Pixels, across: Areas, down: Areas) -> None:
        (left, right), (top, bottom) = across.edges, down.edges
        large = self._raster.decode(left, top, right, bottom)
        if self._has_whole_step or into.shape[1] != self.shape[1]:
            rows = np.zeros((len(large), *into.shape[1:]), np.float32)
            for targets, sources, weights in across.steps():
                rows[:, targets] += np.take(large, sources, axis=1) * weights[:, np.newaxis]
        else:
            # The same sums, faster: OpenCV can begin at the left edge, and leaves the rows alone.
            size = into.shape[1], len(large)
            rows = cv2.resize(large.astype(np.float32), size, None, 0, 0, cv2.INTER_AREA)
            rows = rows.reshape(len(large), *into.shape[1:])
        sums = np.zeros(into.shape, np.float32)
        for targets, sources, weights in down.steps():
            products = rows[sources]
            products *= weights[:, np.newaxis, np.newaxis]
            if len(targets) == len(sums):
                sums += products
            else:
                sums[targets] += products
        into[:] = np.clip(np.rint(sums), 0, np.iinfo(self.dtype).max)


def _scale(source: int, target: int) -> float:
    """Return by how much a side shrinks, rounded as OpenCV rounds it."""
    return 1.0 / (target / source)

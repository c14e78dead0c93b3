"""Images that are made smaller part by part: memory holds a band of the large image.

An image in memory is made smaller by the same sums, so both have the same values, bit for bit.
Areas are averaged as ``cv2.resize(..., interpolation=cv2.INTER_AREA)`` averages them; a value can
differ from OpenCV's by one, where the mean lies between two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import cv2
import numpy as np

from data_prep.images.chunked_image import BAND_BYTES, ChunkedImage
from data_prep.images.plane_selection import Pixels

# Bytes of the large image that are decoded at once; as floating point they take up to four times as
# many.
GROUP_BYTES = 8 << 20


class Shrunk:
    """A raster made smaller by averages of areas; the `RegionReader` of another raster.

    `width, height`: the new size, pixels: on no side larger than the image.
    """

    def __init__(self, raster: ChunkedImage, width: int, height: int) -> None:
        self._raster = raster
        self.shape = (height, width, raster.shape[2])
        self.dtype = raster.dtype
        row_bytes = width * raster.shape[2] * raster.itemsize
        # Whole rows, and many, because each part of the file at their edges is decoded twice.
        self.grain = (min(height, max(1, BAND_BYTES // row_bytes)), width)
        self._scale = raster.shape[0] / height

    def read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        """Compute a rectangle of the smaller image, array [height, width, channels]."""
        height, width = self._raster.shape[:2]
        parts = []
        for start, stop in _groups(top, bottom, self._raster, self._scale):
            first, end = int(start * self._scale), _end(stop - 1, self._scale, height)
            large = self._raster.decode(0, first, width, end)
            parts.append(_means(large, first, (start, stop), self._scale, self.shape))
        return np.concatenate(parts)[:, left:right]

    def close(self) -> None:
        """Close what reads the file."""
        self._raster.close()


def shrink(pixels: Pixels, width: int, height: int) -> Pixels:
    """Return an image in memory made smaller, array [height, width, channels]."""
    shape = (height, width, pixels.shape[2])
    scale = pixels.shape[0] / height
    parts = []
    for start, stop in _groups(0, height, pixels, scale):
        first, end = int(start * scale), _end(stop - 1, scale, len(pixels))
        parts.append(_means(pixels[first:end], first, (start, stop), scale, shape))
    return np.concatenate(parts)


def _groups(
    top: int, bottom: int, large: Pixels | ChunkedImage, scale: float
) -> Iterator[tuple[int, int]]:
    """Yield rows of the smaller image that need few bytes of the large one."""
    row_bytes = math.prod(large.shape[1:]) * large.itemsize
    rows = max(1, int(GROUP_BYTES / row_bytes / scale))
    return ((start, min(bottom, start + rows)) for start in range(top, bottom, rows))


def _end(row: int, scale: float, height: int) -> int:
    """Return where the rows of the large image end that a row of the smaller one covers."""
    return min(height, math.ceil((row + 1) * scale))


def _means(
    large: Pixels, first: int, rows: tuple[int, int], scale: float, shape: tuple[int, int, int]
) -> Pixels:
    """Return rows of the smaller image, of `shape`, from those of the large one from `first` on.

    A row is computed alone and in one order, whatever else is computed with it.
    """
    width, channels = shape[1:]
    size = (width, len(large))
    narrow = cv2.resize(large.astype(np.float32), size, None, 0, 0, cv2.INTER_AREA)
    lines = narrow.reshape(len(large), width * channels)
    pixels = np.empty((rows[1] - rows[0], width * channels), large.dtype)
    for row in range(*rows):
        mean = np.zeros(width * channels, np.float32)
        begin, end = row * scale, (row + 1) * scale
        for source in range(int(begin), min(first + len(large), math.ceil(end))):
            inside = min(source + 1, end) - max(source, begin)
            mean += np.float32(inside / scale) * lines[source - first]
        pixels[row - rows[0]] = np.clip(np.rint(mean), 0, np.iinfo(large.dtype).max)
    return pixels.reshape(len(pixels), width, channels)

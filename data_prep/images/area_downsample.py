"""Images that are made smaller part by part: memory holds a band of the large image.

Areas are averaged as ``cv2.resize(..., interpolation=cv2.INTER_AREA)`` averages them in a whole
image; a value can differ by one, where the mean lies between two.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray

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
        source_row_bytes = math.prod(self._raster.shape[1:]) * self._raster.itemsize
        rows = max(1, int(GROUP_BYTES / source_row_bytes / self._scale))
        parts = [
            self._rows(start, min(bottom, start + rows))[:, left:right]
            for start in range(top, bottom, rows)
        ]
        return np.concatenate(parts)

    def close(self) -> None:
        """Close what reads the file."""
        self._raster.close()

    def _rows(self, top: int, bottom: int) -> Pixels:
        width, channels = self.shape[1:]
        first = self._sources(top)[0]
        large = self._raster.decode(
            0, first, self._raster.shape[1], self._sources(bottom - 1)[-1] + 1
        )
        size = (width, len(large))
        narrow = cv2.resize(large.astype(np.float32), size, None, 0, 0, cv2.INTER_AREA)
        lines = narrow.reshape(len(large), width * channels)
        pixels = np.empty((bottom - top, width * channels), self.dtype)
        for row in range(top, bottom):
            sources = self._sources(row)
            inside = np.minimum(sources + 1, (row + 1) * self._scale)
            inside -= np.maximum(sources, row * self._scale)
            weights = (inside / inside.sum()).astype(np.float32)
            mean = weights @ lines[sources[0] - first : sources[-1] + 1 - first]
            pixels[row - top] = np.clip(np.rint(mean), 0, np.iinfo(self.dtype).max)
        return pixels.reshape(bottom - top, width, channels)

    def _sources(self, row: int) -> NDArray[np.int64]:
        """Return the rows of the large image in which a row of the smaller one lies."""
        end = math.ceil((row + 1) * self._scale)
        return np.arange(int(row * self._scale), min(self._raster.shape[0], end))

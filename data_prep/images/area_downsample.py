"""Large images that are made smaller part by part: memory holds a band of the large image.

Areas are averaged as ``cv2.resize(..., interpolation=cv2.INTER_AREA)`` averages them; a value can
differ from OpenCV's by one, where the mean lies between two.
"""

from __future__ import annotations

import math

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
        large_bytes = raster.shape[1] * raster.shape[2] * raster.itemsize
        self._rows_at_once = max(1, int(GROUP_BYTES / large_bytes / self._scale))

    def read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        """Compute a rectangle of the smaller image, array [height, width, channels]."""
        starts = range(top, bottom, self._rows_at_once)
        parts = [self._means(start, min(bottom, start + starts.step)) for start in starts]
        return np.concatenate(parts)[:, left:right]

    def close(self) -> None:
        """Close what reads the file."""
        self._raster.close()

    def _means(self, top: int, bottom: int) -> Pixels:
        """Return rows; each is summed alone and in one order, whatever else is computed with it."""
        scale, (_, width, channels) = self._scale, self.shape
        first, end = int(top * scale), min(self._raster.shape[0], math.ceil(bottom * scale))
        large = self._raster.decode(0, first, self._raster.shape[1], end).astype(np.float32)
        narrow = cv2.resize(large, (width, end - first), None, 0, 0, cv2.INTER_AREA)
        lines = narrow.reshape(end - first, width * channels)
        pixels = np.empty((bottom - top, width * channels), self.dtype)
        for row in range(top, bottom):
            mean = np.zeros(width * channels, np.float32)
            for source in range(int(row * scale), min(end, math.ceil((row + 1) * scale))):
                inside = min(source + 1, (row + 1) * scale) - max(source, row * scale)
                mean += np.float32(inside / scale) * lines[source - first]
            pixels[row - top] = np.clip(np.rint(mean), 0, np.iinfo(self.dtype).max)
        return pixels.reshape(bottom - top, width, channels)

"""The pixels of a turned image, computed in blocks.

OpenCV computes the place of each pixel from that of the first, and rounds: a pixel whose rectangle
begins elsewhere gets another value. So pixels are always computed in whole blocks of a fixed
grid. A pixel then has one value, however little or much of the turned image is read, in whatever
order, and from whatever part of the file.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from itertools import product
from typing import Any

import cv2
import numpy as np

from data_prep.geometry.grid import RotatedFrame, TileSpec
from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.plane_selection import Pixels, paste

Place = tuple[int, int]

# Side of a block, pixels. Smaller ones cost more calls; around a single tile they waste less.
BLOCK = 64
# Blocks on a side of the part of a raster that is read at once.
GROUP = 4
# Bytes of a turned image with 12 million colour pixels (at 45 degrees it is twice as large).
CACHE_BYTES = 96 << 20
# Of larger ones so many bytes of blocks are kept: what a band of rows 50,000 pixels long needs.
RECENT_BYTES = 32 << 20
# The widest interpolation, lanczos4, reads 4 pixels on each side.
WINDOW_MARGIN = 5

FLAGS = {
    "nearest": cv2.INTER_NEAREST,
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
    "lanczos4": cv2.INTER_LANCZOS4,
}


class ScratchBuffer:
    """Memory that is reused, because the system takes long to hand out new pages."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Pixels:
        """Return an uninitialised array, valid until the next call."""
        size = math.prod(shape) * dtype.itemsize
        if size > self._bytes.size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size].view(dtype).reshape(shape)


class RotatedImage:
    """The pixels of a base angle's frame; each block is computed when it is first read.

    `spec`: the specification; only its `interpolation` and `edge` are used.
    `cache_bytes`: A turned image up to this size is kept. Of a larger one the blocks that were used
    last are kept, at most so many bytes and 32 MiB.
    `room`: memory for it; it must not be used for another one at the same time.

    Examples
    --------
    >>> image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    >>> RotatedImage(image, RotatedFrame(4, 3, 0.0), TileSpec(2)).read(2, 1, 5, 3).tolist()
    [[6, 7, 0], [10, 11, 0]]
    """

    def __init__(
        self,
        image: Pixels | ChunkedImage,
        frame: RotatedFrame,
        spec: TileSpec,
        cache_bytes: int = CACHE_BYTES,
        room: ScratchBuffer | None = None,
    ) -> None:
        self._image = image
        width, height = frame.base_size
        self.shape = (height, width, *image.shape[2:])
        self.dtype = image.dtype
        self._blocks = None
        if frame.base:
            self._blocks = _Blocks(image, frame, spec, cache_bytes, room or ScratchBuffer())

    def read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        """Return a rectangle, black beyond the frame; it may be a view."""
        height, width = self.shape[:2]
        if left >= 0 and top >= 0 and right <= width and bottom <= height:
            return self._read(left, top, right, bottom)
        pixels = np.zeros((bottom - top, right - left, *self.shape[2:]), self.dtype)
        from_x, from_y = max(left, 0), max(top, 0)
        to_x, to_y = min(right, width), min(bottom, height)
        if from_x < to_x and from_y < to_y:
            inner = self._read(from_x, from_y, to_x, to_y)
            pixels[from_y - top : to_y - top, from_x - left : to_x - left] = inner
        return pixels

    def _read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        if self._blocks is not None:
            return self._blocks.read(left, top, right, bottom)
        if isinstance(self._image, ChunkedImage):
            return self._image.read(left, top, right, bottom)
        return self._image[top:bottom, left:right]


class _Blocks:
    """The blocks of a frame that has to be computed; see `RotatedImage`."""

    def __init__(
        self,
        image: Pixels | ChunkedImage,
        frame: RotatedFrame,
        spec: TileSpec,
        cache_bytes: int,
        room: ScratchBuffer,
    ) -> None:
        self._warp = _Warp(image, frame, spec)
        width, height = frame.base_size
        channels = image.shape[2:]
        # A frame ends where its last block ends, because values depend on the size of a block, too.
        across, down = -(-width // BLOCK), -(-height // BLOCK)
        shape = (down * BLOCK, across * BLOCK, *channels)
        self._buffer: Pixels | None = None
        if math.prod(shape) * image.itemsize <= cache_bytes:
            self._buffer = room.array(shape, image.dtype)
            self._is_known = np.zeros((down, across), np.bool_)
        self._recent: OrderedDict[Place, Pixels] = OrderedDict()
        self._block_shape = (BLOCK, BLOCK, *channels)
        self._dtype = image.dtype
        self._most = min(cache_bytes, RECENT_BYTES) // (
            math.prod(self._block_shape) * image.itemsize
        )

    def read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        """Return a rectangle inside the frame."""
        rows = range(top // BLOCK, -(-bottom // BLOCK))
        columns = range(left // BLOCK, -(-right // BLOCK))
        if self._buffer is not None:
            self._complete(self._buffer, rows, columns)
            return self._buffer[top:bottom, left:right]
        pixels = np.empty((bottom - top, right - left, *self._block_shape[2:]), self._dtype)
        for row, column in _in_groups(rows, columns):
            paste(self._get(row, column), (column * BLOCK, row * BLOCK), pixels, (left, top))
        return pixels

    def _complete(self, buffer: Pixels, rows: range, columns: range) -> None:
        known = self._is_known[rows.start : rows.stop, columns.start : columns.stop]
        if known.all():
            return
        for row, column in _in_groups(rows, columns):
            if not self._is_known[row, column]:
                y, x = row * BLOCK, column * BLOCK
                self._warp.compute(row, column, buffer[y : y + BLOCK, x : x + BLOCK])
        known[:] = True

    def _get(self, row: int, column: int) -> Pixels:
        block = self._recent.pop((row, column), None)
        if block is None:
            block = np.empty(self._block_shape, self._dtype)
            self._warp.compute(row, column, block)
        self._recent[row, column] = block
        while len(self._recent) > self._most:
            self._recent.popitem(last=False)
        return block


def _in_groups(rows: range, columns: range) -> Iterator[Place]:
    """Yield blocks so that those of a group, which need one part of a raster, come together."""
    for group in range(columns.start // GROUP, -(-columns.stop // GROUP)):
        start, stop = group * GROUP, (group + 1) * GROUP
        yield from product(rows, range(max(start, columns.start), min(stop, columns.stop)))


class _Warp:
    """Computes one block of a frame."""

    def __init__(self, image: Pixels | ChunkedImage, frame: RotatedFrame, spec: TileSpec) -> None:
        self._image = image
        self._height, self._width = image.shape[:2]
        self._flag = FLAGS[spec.interpolation] | cv2.WARP_INVERSE_MAP
        self._padded = spec.edge == "pad"
        # These overshoot beside sharp edges. OpenCV limits values to the range of the type, which
        # is larger than that of a 12-bit camera.
        overshoots = spec.interpolation in ("cubic", "lanczos4")
        self._highest = image.max() if overshoots and image.dtype == np.uint16 else None
        cosine, sine = self._cosine, self._sine = frame.direction
        self._matrix = np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0]])
        # From left and top of the box around a block to the centre of the block's first pixel, in
        # OpenCV's coordinates, in which pixel centres are whole numbers.
        self._first = sine * BLOCK + (cosine - sine - 1) / 2, (cosine + sine - 1) / 2
        x, y = frame.base_to_source(np.zeros(1), np.zeros(1))
        self._origin = float(x[0]), float(y[0])
        self._nothing: Pixels = np.empty((0, 0), image.dtype)
        self._part: tuple[Place, int, int, Pixels] | None = None

    def compute(self, row: int, column: int, out: Pixels) -> None:
        """Compute the block in this row and column of blocks."""
        x, y, *_ = box = self._box(column * BLOCK, row * BLOCK, BLOCK)
        window_x, window_y, pixels = self._window(box, (row // GROUP, column // GROUP))
        if 0 in pixels.shape:
            out[:] = 0  # wholly outside
            return
        self._matrix[:, 2] = x + self._first[0] - window_x, y + self._first[1] - window_y
        # The kernel of a pixel at the edge reaches beyond it. OpenCV never ends where a single row
        # or column is to be reflected.
        is_line = 1 in pixels.shape[:2]
        border = cv2.BORDER_REPLICATE if is_line else cv2.BORDER_REFLECT_101
        cv2.warpAffine(pixels, self._matrix, (BLOCK, BLOCK), out, self._flag, border)
        if self._highest is not None:
            np.minimum(out, self._highest, out=out)
        if self._padded and not self._is_inside(box):
            self._blacken(column * BLOCK, row * BLOCK, out)

    def _box(self, left: float, top: float, side: float) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom, in the source, around a square of the frame."""
        cosine, sine = self._cosine, self._sine
        x = self._origin[0] + cosine * left - sine * top
        y = self._origin[1] + sine * left + cosine * top
        return x - sine * side, y, x + cosine * side, y + (cosine + sine) * side

    def _window(
        self, box: tuple[float, float, float, float], group: Place
    ) -> tuple[int, int, Pixels]:
        """Return left and top edge, and the pixels, from which a block is computed.

        OpenCV's rounding depends on where the window begins, so arrays and rasters use the same.
        """
        left, top, right, bottom = self._clip(box, WINDOW_MARGIN)
        if left >= right or top >= bottom:
            return left, top, self._nothing
        # What lies outside is reflected as often as it takes, so a window is no thin slice.
        left, top = max(0, min(left, right - BLOCK)), max(0, min(top, bottom - BLOCK))
        right = min(self._width, max(right, left + BLOCK))
        bottom = min(self._height, max(bottom, top + BLOCK))
        if not isinstance(self._image, ChunkedImage):
            return left, top, self._image[top:bottom, left:right]
        if self._part is None or self._part[0] != group:
            side = GROUP * BLOCK
            box = self._box(group[1] * side, group[0] * side, side)
            around = self._clip(box, WINDOW_MARGIN + BLOCK)
            self._part = group, around[0], around[1], self._image.read(*around)
        _, x, y, part = self._part
        return left, top, part[top - y : bottom - y, left - x : right - x]

    def _clip(
        self, box: tuple[float, float, float, float], margin: int
    ) -> tuple[int, int, int, int]:
        """Return the edges of the pixels in a box and this margin around it; they may be none."""
        left, top, right, bottom = box
        first_x, first_y = max(0, int(left) - margin), max(0, int(top) - margin)
        return (
            first_x,
            first_y,
            max(first_x, min(self._width, int(right) + margin)),
            max(first_y, min(self._height, int(bottom) + margin)),
        )

    def _is_inside(self, box: tuple[float, float, float, float]) -> bool:
        left, top, right, bottom = box
        return left >= 0 and top >= 0 and right <= self._width and bottom <= self._height

    def _blacken(self, left: int, top: int, out: Pixels) -> None:
        """Make pixels black if their centres lie outside the source."""
        x = np.arange(left, left + BLOCK) + 0.5
        y = (np.arange(top, top + BLOCK) + 0.5)[:, np.newaxis]
        source_x = self._origin[0] + self._cosine * x - self._sine * y
        source_y = self._origin[1] + self._sine * x + self._cosine * y
        inside = (source_x > 0) & (source_x < self._width)
        inside &= (source_y > 0) & (source_y < self._height)
        out[~inside] = 0

"""An image that is decoded part by part: memory holds a few blocks, however large the image is.

Rotated tiles need pixels in any order. A `ChunkedImage` decodes each part of its file once, keeps
the blocks that were used last, and writes the others to an unnamed file on the local disk.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Protocol

import numpy as np

from data_prep.images.plane_selection import Pixels, as_channels, paste
from distkeras_grid.errors import StorageError
from distkeras_grid.feeding.local_file import local_folder

# Side of a block, pixels; larger if the parts of a file are larger or do not divide it.
BLOCK = 256
# Bytes of blocks in memory: about what one band of rows touches in an image 30,000 pixels wide.
CACHE_BYTES = 128 << 20
# Bytes of the rows that are decoded at once where all pixels are read in order.
BAND_BYTES = 32 << 20
# Most bytes of a single part of a file; a file with larger parts is not read part by part.
MOST_PART_BYTES = 64 << 20


class RegionReader(Protocol):
    """What a file format must offer so that its images can be read part by part.

    `grain`: height and width of the parts in which the file is decoded, pixels.
    """

    @property
    def shape(self) -> tuple[int, int, int]: ...  # noqa: D102

    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102

    @property
    def grain(self) -> tuple[int, int]: ...  # noqa: D102

    def read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        """Decode a rectangle of the image, array [height, width, channels]."""
        ...

    def close(self) -> None:
        """Close what reads the file."""
        ...


class ChunkedImage:
    """An image of which any rectangle can be read; call `close` at the end.

    `regions`: the image in its file, which must stay open.
    `cache_bytes`: bytes of blocks in memory.

    Examples
    --------
    >>> class Ramp:
    ...     shape, dtype, grain = (300, 400, 1), np.dtype(np.uint16), (1, 400)
    ...     def read(self, left, top, right, bottom):
    ...         return np.zeros((bottom - top, 1, 1), np.uint16) + np.arange(left, right)[:, None]
    ...     def close(self):
    ...         pass
    >>> ChunkedImage(Ramp()).read(255, 0, 258, 1).ravel().tolist()
    [255, 256, 257]
    """

    ndim = 3

    def __init__(
        self,
        regions: RegionReader,
        channels: int | None = None,
        change: Callable[[Pixels], Pixels] | None = None,
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._regions = regions
        self._change = change
        height, width, own = regions.shape
        self.shape = (height, width, channels or own)
        self.dtype = regions.dtype
        self.itemsize = self.dtype.itemsize
        self._block = _block_size(regions.grain, (height, width))
        self._across = math.ceil(width / self._block[1])
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[tuple[int, int], Pixels] = OrderedDict()
        self._scratch: _Scratch | None = None
        self._highest: int | None = None

    @property
    def regions(self) -> RegionReader:
        """The image in its file."""
        return self._regions

    def read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        """Return a rectangle of the image."""
        pixels = np.empty((max(0, bottom - top), max(0, right - left), self.shape[2]), self.dtype)
        if not pixels.size:
            return pixels
        high, wide = self._block
        rows = range(top // high, (bottom - 1) // high + 1)
        columns = range(left // wide, (right - 1) // wide + 1)
        for row, column in product(rows, columns):
            paste(self._get((row, column)), (column * wide, row * high), pixels, (left, top))
        return pixels

    def decode(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        """Decode a rectangle as `read` returns it; no block is kept."""
        pixels = as_channels(self._regions.read(left, top, right, bottom), self.shape[2])
        return pixels if self._change is None else self._change(pixels)

    def bands(self) -> Iterator[Pixels]:
        """Decode the whole image once, a few rows at a time; no block is kept."""
        height, width, channels = self.shape
        grain = self._regions.grain[0]
        row_bytes = width * max(channels, self._regions.shape[2]) * self.itemsize
        rows = max(grain, BAND_BYTES // row_bytes // grain * grain)
        for top in range(0, height, rows):
            yield self.decode(0, top, width, min(height, top + rows))

    def max(self) -> int:
        """Return the largest value; for this, every block is decoded once."""
        if self._highest is None:
            down = math.ceil(self.shape[0] / self._block[0])
            places = product(range(down), range(self._across))
            self._highest = max(int(self._get(place).max()) for place in places)
        return self._highest

    def set_max(self, highest: int) -> None:
        """Set the largest value, so that `max` need not find it."""
        self._highest = highest

    def close(self) -> None:
        """Close the source of the image, and delete the blocks on the disk."""
        self._cache.clear()
        self._regions.close()
        if self._scratch is not None:
            self._scratch.close()

    def _get(self, place: tuple[int, int]) -> Pixels:
        block = self._cache.get(place)
        if block is not None:
            self._cache.move_to_end(place)
            return block
        if self._scratch is not None and (number := self._number(place)) in self._scratch:
            self._keep(place, self._scratch.get(number))
        else:
            self._decode(place)
        return self._cache[place]

    def _decode(self, place: tuple[int, int]) -> None:
        """Decode a block, and those that can only be decoded together with it."""
        row, column = place
        high, wide = self._block
        top, bottom = row * high, min(self.shape[0], (row + 1) * high)
        is_strip = self._regions.grain[1] > wide
        columns = range(self._across) if is_strip else range(column, column + 1)
        left, right = columns[0] * wide, min(self.shape[1], (columns[-1] + 1) * wide)
        pixels = self.decode(left, top, right, bottom)
        for each in (*(c for c in columns if c != column), column):
            if (row, each) not in self._cache:
                start = each * wide - left
                self._keep((row, each), pixels[:, start : start + wide].copy())

    def _keep(self, place: tuple[int, int], block: Pixels) -> None:
        self._cache[place] = block
        while len(self._cache) > 1 and self._bytes() > self._cache_bytes:
            self._put_away(*self._cache.popitem(last=False))

    def _bytes(self) -> int:
        # All have this size except those at the right and bottom edges.
        return len(self._cache) * math.prod(self._block) * self.shape[2] * self.itemsize

    def _put_away(self, place: tuple[int, int], block: Pixels) -> None:
        if self._scratch is None:
            slot = math.prod(self._block) * self.shape[2] * self.itemsize
            count = self._across * math.ceil(self.shape[0] / self._block[0])
            self._scratch = _Scratch(slot, count)
        self._scratch.put(self._number(place), block)

    def _number(self, place: tuple[int, int]) -> int:
        return place[0] * self._across + place[1]


class _Scratch:
    """Blocks on the local disk; if the disk is full, blocks are not stored.

    `slot`: size of the largest block, bytes.
    """

    def __init__(self, slot: int, count: int) -> None:
        self._slot = slot
        self._shapes: dict[int, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._file = tempfile.TemporaryFile(dir=local_folder())  # noqa: SIM115  closed by close()
        # Half of the disk is left to other tasks and to Spark's shuffles.
        self._is_open = slot * count < shutil.disk_usage(local_folder()).free // 2

    def __contains__(self, number: int) -> bool:
        return number in self._shapes

    def put(self, number: int, block: Pixels) -> None:
        """Store a block, unless it is there or the disk has no room."""
        if number in self._shapes or not self._is_open:
            return
        content = np.ascontiguousarray(block).data.cast("B")
        try:
            done = os.pwrite(self._file.fileno(), content, number * self._slot)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            done = 0
        if done == len(content):
            self._shapes[number] = block.shape, block.dtype
        else:
            self._is_open = False

    def get(self, number: int) -> Pixels:
        """Return a block that was stored."""
        block = np.empty(*self._shapes[number])
        content = block.data.cast("B")
        if os.preadv(self._file.fileno(), [content], number * self._slot) != len(content):
            raise StorageError(
                f"A worker's local file in {local_folder()} cannot be read. Look for errors of "
                "this disk."
            )
        return block

    def close(self) -> None:
        """Delete the file."""
        self._file.close()


def _block_size(grain: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Return height and width of blocks: no part of a file lies in two, unless it is a strip.

    Examples
    --------
    >>> _block_size((240, 240), (9000, 9000)), _block_size((16, 9000), (9000, 9000))
    ((480, 480), (256, 256))
    """
    high, wide = (part * math.ceil(BLOCK / part) for part in grain)
    return high, BLOCK if grain[1] >= size[1] else wide

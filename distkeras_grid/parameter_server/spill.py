"""Room for what need not be in main memory: files without a name.

A server keeps the state of every worker, which together may be larger than the memory of the
driver's container. The system writes such pages to disk when it needs the memory. Snapshots of the
center, of which there may be many, lie in one file.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import warnings
from collections.abc import Iterator, MutableMapping

import numpy as np

from distkeras_grid.array_tree import Packed
from distkeras_grid.weights import Vector

#: Smaller buffers are ordinary memory.
SMALL = 1 << 20
#: What the system says of a disk or a quota that is full.
FULL = (errno.ENOSPC, errno.EDQUOT)


def scratch(size: int) -> Packed:
    """Return a new buffer, shape ``(size,)``, ``uint8``; a large one lies in a nameless file.

    If the directory of temporary files has no room, it is ordinary memory, and a warning says so.
    """
    if size < SMALL:
        return np.empty(size, np.uint8)
    try:
        with tempfile.TemporaryFile(prefix="distkeras-grid-") as file:
            # Now, because a write to a page for which there is no room would kill the process.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
    except OSError as error:
        if error.errno not in FULL:
            raise
        # A worker would send its state again and again, and at last end the run.
        warning = (
            f"{size} bytes of state are held in memory, not in {tempfile.gettempdir()}: {error}"
        )
        warnings.warn(warning, RuntimeWarning, stacklevel=2)
    return np.empty(size, np.uint8)


class FileSnapshotStore(MutableMapping[int, Vector]):
    """Copies of vectors in one nameless file, by number.

    What cannot be written to disk is held in memory, and a warning says so.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._closed = False
        # Where each vector begins [bytes], how long it is, and its type.
        self._places: dict[int, tuple[int, int, np.dtype[np.float32]]] = {}
        self._in_memory: dict[int, Vector] = {}

    def close(self) -> None:
        """Give the file up with all that is in it. What is put later is held in memory."""
        self._closed = True
        self._places.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __setitem__(self, number: int, vector: Vector) -> None:
        if self._closed:
            self._in_memory[number] = vector.copy()
            return
        start = self._free(vector.nbytes)
        try:
            self._write(vector, start)
        except OSError as error:
            # The commit has just been folded and counted, so it cannot be refused any more.
            warning = f"A snapshot of {vector.nbytes} bytes is held in memory: {error}"
            warnings.warn(warning, RuntimeWarning, stacklevel=2)
            self._in_memory[number] = vector.copy()
        else:
            self._places[number] = start, vector.size, vector.dtype

    def __getitem__(self, number: int) -> Vector:
        if number in self._in_memory:
            return self._in_memory[number].copy()
        start, size, dtype = self._places[number]
        vector = np.empty(size, dtype)
        left = vector.view(np.uint8).data
        while left:
            count = os.preadv(self._opened(), [left], start)
            if not count:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            left, start = left[count:], start + count
        return vector

    def __delitem__(self, number: int) -> None:
        # Another one may take its place in the file.
        del (self._in_memory if number in self._in_memory else self._places)[number]

    def __iter__(self) -> Iterator[int]:
        return iter({**self._in_memory, **self._places})

    def __len__(self) -> int:
        return len(self._in_memory) + len(self._places)

    def _free(self, length: int) -> int:
        """Return the first place in the file that has room for so many bytes."""
        start = 0
        for taken, size, dtype in sorted(self._places.values(), key=lambda place: place[0]):
            if start + length <= taken:
                break
            start = taken + size * dtype.itemsize
        return start

    def _write(self, vector: Vector, start: int) -> None:
        left = np.ascontiguousarray(vector).view(np.uint8).data
        while left:
            count = os.pwrite(self._opened(), left, start)
            left, start = left[count:], start + count

    def _opened(self) -> int:
        if self._file is None:
            with tempfile.TemporaryFile(prefix="distkeras-grid-") as file:
                self._file = os.dup(file.fileno())
        return self._file

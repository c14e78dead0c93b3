"""A file without a name on a worker's disk: written once, read in pieces, small in memory."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import LocalDiskError, NoSpaceError
from distkeras_grid.rows import aligned_empty, take

# Space on the disk that is left to others.
RESERVED_BYTES = 256 << 20

# A disk or a quota is full.
FULL = (errno.ENOSPC, errno.EDQUOT)
# The process or the host has too many open files, whatever disk they are on.
LIMITS = (errno.EMFILE, errno.ENFILE)


class LocalFile:
    """Bytes on the local disk, deleted when the process ends in whatever way."""

    def __init__(self, folder: Path, mapped_bytes: int) -> None:
        self._folder = folder
        self._mapped_bytes = mapped_bytes
        self._map: mmap.mmap | None = None
        self._written = 0
        with self._disk():
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed by close()

    @property
    def free_bytes(self) -> int:
        """Free space on the disk, less the part that is left to others."""
        with self._disk():
            return shutil.disk_usage(self._folder).free - RESERVED_BYTES

    def write(self, content: bytes | memoryview) -> None:
        """Append bytes."""
        size = memoryview(content).nbytes
        free = self.free_bytes
        if size > free:
            raise NoSpaceError(self._no_space(size, free))
        # A quota may be reached, or another process has taken the space.
        with self._disk(size):
            self._file.write(content)
        self._written += size

    def seal(self) -> None:
        """End the writing."""
        with self._disk():
            self._file.flush()
        if 0 < self._written <= self._mapped_bytes:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, start: int, stop: int) -> memoryview:
        """Return the bytes from `start` to before `stop`."""
        if self._map is not None:
            return memoryview(self._map)[start:stop]
        content = bytearray(stop - start)
        self._read_into(memoryview(content), start)
        return memoryview(content)

    def read_records(self, places: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """Return copies of records of one size.

        `places`: numbers of the records, shape ``(n,)``. The file begins with record 0.
        `size`: bytes of a record.
        """
        if self._map is not None:
            records: NDArray[Any] = np.frombuffer(self._map, np.uint8).reshape(-1, size)
            return take(records, places)
        table = aligned_empty((len(places), size), np.uint8)
        content = table.reshape(-1).data
        for row, place in enumerate(places.tolist()):
            self._read_into(content[row * size : (row + 1) * size], place * size)
        return table

    def close(self) -> None:
        """Delete the file. A second call has no effect."""
        # A traceback may still hold views, so the map is freed with the last of them.
        self._map = None
        # What a full disk has left in the buffer is written once more, and nobody needs it.
        with contextlib.suppress(OSError):
            self._file.close()

    def _read_into(self, target: memoryview, start: int) -> None:
        with self._disk():
            got = os.preadv(self._file.fileno(), [target], start)
        if got != len(target):
            raise LocalDiskError(
                f"A worker's local file in {self._folder} cannot be read. Received: {got} of "
                f"{len(target)} bytes at position {start} of {self._written}. Look for errors of "
                "this disk."
            )

    @contextlib.contextmanager
    def _disk(self, size: int = 0) -> Iterator[None]:
        """Turn an error of the system into ours, so that it is told from one of the user's code."""
        try:
            yield
        except OSError as error:
            if error.errno in LIMITS:
                raise
            if error.errno in FULL:
                raise NoSpaceError(self._no_space(size, self.free_bytes)) from error
            raise LocalDiskError(
                f"A worker's local file in {self._folder} cannot be written or read. Received: "
                f"{error}. Look for errors of this disk, or point spark.local.dir at another one."
            ) from error

    def _no_space(self, size: int, free: int) -> str:
        return (
            f"A worker's rows do not fit on the disk of {self._folder}. Received: {size:,} bytes "
            f"after {self._written:,}, with {max(free, 0):,} bytes free ({RESERVED_BYTES:,} more "
            "are left to others). Use workers on more hosts, point spark.local.dir at a larger "
            "disk, or store images as jpeg."
        )


def local_folder() -> Path:
    """Return a folder on the worker's local disks."""
    # Spark passes its local directories to its Python workers. On YARN they are the container's.
    first = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(first) if first and Path(first).is_dir() else Path(tempfile.gettempdir())

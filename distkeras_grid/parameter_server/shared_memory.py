"""Vectors that two processes of one host share, so that an exchange copies them once each way.

Each side owns one vector and lends it to the other one: a file without a name, which is mapped by
both and passed through their Unix socket. Seals of the kernel (``memfd_create``) make it safe to
read what another process lends. Its length never changes, all its pages are there, and nobody but
the owner can write it. The owner still can at any time, so a reader copies before it checks.

As there is no name, nothing stays behind, however the processes end.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

import numpy as np

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.weights import Vector

#: Bytes that a server maps of all its workers' vectors together. Others send theirs by the socket.
LENT_LIMIT = 1 << 30
# Linux' numbers, because Python has no names for them on other systems, and none for the last.
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 0x1, 0x2, 0x4, 0x10
_SEALS = _SEAL_SHRINK | _SEAL_GROW | _SEAL_FUTURE_WRITE
_BLOCK = 512


class SharedBuffer:
    """A vector that only this process can write, and that it can lend to others.

    `size`: numbers in it, at least 1.
    `vector`: shape ``(size,)``, ``float32``, zero, at the start of a page. It outlives `close`.
    """

    def __init__(self, size: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError(errno.ENOSYS, "this system has no memfd_create")
        self.file = os.memfd_create("distkeras-grid", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Now, because a write to a page for which there is no room would kill the process.
            os.posix_fallocate(self.file, 0, 4 * size)
            self.vector: Vector = np.frombuffer(mmap.mmap(self.file, 4 * size), np.float32)
            fcntl.fcntl(self.file, _ADD_SEALS, _SEALS | _SEAL_SEAL)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor. The memory is there while somebody has it mapped."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


def borrow(file: int, size: int) -> Vector:
    """Map a vector that another process owns."""
    try:
        seals = fcntl.fcntl(file, _GET_SEALS)
    except OSError:
        # Only such memory has seals.
        seals = 0
    about = os.fstat(file)
    if seals & _SEALS != _SEALS or about.st_size != 4 * size or about.st_blocks * _BLOCK < 4 * size:
        raise RemoteProtocolError(
            f"Lent memory has {4 * size} bytes, all allocated, and the seals {_SEALS}. Received: "
            f"{about.st_size} bytes, {about.st_blocks * _BLOCK} allocated, seals {seals}."
        )
    vector: Vector = np.frombuffer(mmap.mmap(file, 4 * size, prot=mmap.PROT_READ), np.float32)
    return vector

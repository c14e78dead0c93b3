"""A file of which only ranges are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import RawIOBase
from typing import Any


class RangeReader(RawIOBase):
    """A file of `size` bytes; `read` returns a range, by its first byte and its length."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._read = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, and return it."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._at

    def readinto(self, target: Any) -> int:
        """Read into a buffer; return the number of bytes."""
        wanted = memoryview(target).cast("B")
        count = min(len(wanted), max(0, self._size - self._at))
        content = self._read(self._at, count) if count else b""
        wanted[: len(content)] = content
        self._at += len(content)
        return len(content)

"""A file that can be opened, and not read."""

from __future__ import annotations

import errno
import os
from io import BufferedReader, RawIOBase


class BadSector(RawIOBase):
    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=os.SEEK_SET):
        return offset if whence == os.SEEK_SET else 1

    def readinto(self, _):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def open_bad_sector():
    return BufferedReader(BadSector())

"""A file that can be opened, and not read."""

from __future__ import annotations

import errno
import os
from io import BufferedReader

from tests.data_prep.counting import Counting


class BadSector(Counting):
    def readinto(self, _):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def open_bad_sector():
    return BufferedReader(BadSector(b"x"))

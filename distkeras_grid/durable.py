"""Renames that hold what they promise after a power failure: the whole file, or none."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def replace(source: str | Path, target: str | Path) -> None:
    """Rename a file in one step, after its bytes have reached the disk.

    Without that, file systems may store the new name first. After a power failure it would then be
    a file without content.

    Parameters
    ----------
    source, target : str or pathlib.Path
        Files on one file system; one at `target` is replaced.

    Raises
    ------
    OSError
        If the disk or the file system refuses.
    """
    _sync(source)
    os.replace(source, target)
    try:
        _sync(os.path.dirname(target) or ".")
    except OSError as error:
        # Some file systems, such as those of FUSE, cannot do this for folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _sync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

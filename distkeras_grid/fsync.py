"""Renames that hold what they promise after a power failure: the whole file or folder, or none."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a path in a new folder beside `target`; the file there takes its name in one step.

    The folder of `target` is made where it is missing. An error leaves nothing in it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        partial = Path(scratch, target.name)
        yield partial
        replace(partial, target)


def replace(source: str | Path, target: str | Path) -> None:
    """Rename a file in one step, after its bytes have reached the disk.

    Without that, file systems may store the new name first. After a power failure it would then be
    a file without content.
    """
    _sync(source)
    os.replace(source, target)
    renamed(source, target)


def persist(path: str | Path) -> None:
    """Let a file, or all that lies below a folder, reach the disk before it gets its name."""
    if not os.path.isdir(path):
        _sync(path)
        return
    for folder, _, names in os.walk(path, onerror=_raise):
        for name in names:
            file = os.path.join(folder, name)
            if stat.S_ISREG(os.lstat(file).st_mode):
                _sync(file)
        _sync_folder(folder)


def renamed(source: str | Path, target: str | Path) -> None:
    """Let the new name of a file or folder reach the disk, and the end of its former one."""
    new, old = (os.path.dirname(path) or "." for path in (target, source))
    _sync_folder(new)
    if old != new:
        _sync_folder(old)


def _raise(error: OSError) -> None:
    raise error


def _sync_folder(path: str | Path) -> None:
    try:
        _sync(path)
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

"""Files that commands lock, opened so that nothing else of this machine is harmed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from distkeras_grid.errors import StorageError

# Each further try means that somebody has just deleted the file: one is rare enough.
_TRIES = 20


def lock_file(path: str | Path, before: Callable[[], object] = lambda: None) -> FileIO | None:
    """Open a file and lock it until it is closed; make it where it is missing.

    A lock counts only where the path still leads to the locked file. Otherwise two processes would
    hold it: the one that had opened a file before it was deleted, and the one that has made it
    anew. So whoever holds the lock may delete the file.
    """
    for _ in range(_TRIES):
        before()
        file = open_lock_file(path)
        try:
            is_locked = _lock(file, path)
            if is_locked and _leads_to(path, file):
                return file
        except BaseException:
            file.close()
            raise
        file.close()
        if not is_locked:
            return None
    raise StorageError(
        f"The lock file {path} was deleted {_TRIES} times while it was locked. Give another file, "
        "or find out who deletes it."
    )


def _lock(file: FileIO, path: str | Path) -> bool:
    """Lock an open file; return False if it is locked already."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some network file systems have no locks.
        raise StorageError(
            f"The lock file {path} cannot be locked: {error.strerror}. Give a file on a local disk."
        ) from error
    return True


def _leads_to(path: str | Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def open_lock_file(path: str | Path) -> FileIO:
    """Open a file for a lock; make it where it is missing."""
    try:
        # A link may name a file of somebody else's choice, a pipe or a device would block.
        descriptor = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644
        )
    except OSError as error:
        reason = "it is a link" if os.path.islink(path) else error.strerror
        raise StorageError(
            f"The lock file {path} cannot be opened: {reason}. Give a file in a directory of this "
            "machine that you may write to."
        ) from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return FileIO(descriptor, "r+")
    os.close(descriptor)
    raise StorageError(f"{path} is not a file. Give a lock file that does not exist yet.")

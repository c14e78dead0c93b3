"""Files that commands lock, opened so that nothing else of this machine is harmed."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

from distkeras_grid.errors import StorageError


def lock_file(path: str | Path) -> FileIO | None:
    """Open a file, made where it is missing, and lock it until it is closed; None if it is held."""
    import fcntl

    file = _open(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError as error:
        file.close()
        # Some network file systems have no locks.
        raise StorageError(
            f"The lock file {path} cannot be locked: {error.strerror}. Give a file on a local disk."
        ) from error
    if not (os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(file.fileno()))):
        # Whoever held it has deleted it, and another one may have made it anew.
        file.close()
        return None
    return file


def _open(path: str | Path) -> FileIO:
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

"""Files that commands lock, opened so that nothing else of this machine is harmed."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

from distkeras_grid.errors import StorageError


def open_lock_file(path: str | Path) -> FileIO:
    """Open a file for a lock; make it where it is missing.

    Parameters
    ----------
    path : str or pathlib.Path
        A file of this machine.

    Returns
    -------
    io.FileIO
        Open for reading and writing, not locked. No child process inherits it by itself.

    Raises
    ------
    StorageError
        If it cannot be opened, or is a link, a pipe, a device or a folder.
    """
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

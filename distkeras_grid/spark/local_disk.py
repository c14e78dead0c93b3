"""Files of a local disk that survive a power failure, and names that are given once."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from distkeras_grid import fsync
from distkeras_grid.errors import StorageError


def persist(path: str) -> None:
    """Let a file, or a folder with all files in it, reach the disk."""
    # Somebody may rename or delete it at the same time: the rename says who was first. What this
    # user may not read, they have not just written: it is only moved aside.
    with suppress(FileNotFoundError, PermissionError):
        fsync.persist(path)


@contextmanager
def renaming(source: str, target: str) -> Iterator[None]:
    """Rename in the block: on a local disk the content is there before, and the name after it."""
    persist(source)
    yield
    try:
        fsync.renamed(source, target)
    except (FileNotFoundError, PermissionError):
        # The folder is gone, and the file with it, or only its owner may open it.
        pass
    except OSError as error:
        raise StorageError(
            f"{target} has its name, but the disk does not keep it: {error.strerror}. Look at the "
            "disk before you go on."
        ) from error


def rename_file(source: str, target: str, *, overwrite: bool) -> None:
    """Rename a file in one step, which replaces another one, or fails if there is one.

    Hadoop does neither on a local disk.
    """
    if overwrite:
        os.replace(source, target)
        return
    try:
        os.link(source, target)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        # A disk without hard links: what it says varies.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(source, target)
    else:
        os.unlink(source)

"""Files of a local disk that survive a power failure, and names that are given once."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distkeras_grid import fsync
from distkeras_grid.errors import NoSpaceError, StorageError


def persist(path: str) -> None:
    """Let a file, or a folder with all files in it, reach the disk."""
    try:
        fsync.persist(path)
    except (FileNotFoundError, PermissionError):
        # Somebody renames or deletes it at the same time: the rename says who was first. What this
        # user may not read, they have not just written: it is only moved aside.
        pass
    except OSError as error:
        kind = NoSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(
            f"{path} cannot be written to the disk: {error.strerror}. Look at the disk."
        ) from error


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


def link(files: Any, new: Any, old: Any) -> bool:
    """Give a file a second name; return False on disks without hard links."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        files.createLink(new, old)
    except Py4JJavaError as error:
        # "Operation not permitted", "Operation not supported": what the disk says varies.
        kinds = ("FileSystemException", "UnsupportedOperationException")
        if error.java_exception.getClass().getSimpleName() in kinds:
            return False
        raise
    return True

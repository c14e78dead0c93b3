"""The side of a transfer that is on this machine; links are followed."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from distkeras_grid.errors import NoSpaceError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.connection import FileStatus
from distkeras_grid.webhdfs.transfer_plan import TransferItem, is_hidden

PIECE_BYTES = 1 << 20


@contextmanager
def translated(action: str, path: str) -> Iterator[None]:
    """Translate errors of the operating system into `StorageError`, which names the path."""
    try:
        yield
    except FileNotFoundError as error:
        raise PathNotFoundError(
            f"Cannot {action} {path}: it does not exist. Check the path."
        ) from error
    except OSError as error:
        text = f"Cannot {action} {path}: {error.strerror or error}."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(f"{text} Free some space there.") from error
        raise StorageError(text) from error


def walk(source: str, target: str, above: tuple[str, ...] = ()) -> Iterator[TransferItem]:
    """Yield a file, or a folder with all below it, each with its place below `target`."""
    with translated("read", source):
        size = os.stat(source).st_size
        names = sorted(os.listdir(source)) if os.path.isdir(source) else []
    if os.path.isfile(source):
        yield TransferItem(source, target, size)
        return
    if not os.path.isdir(source):
        raise StorageError(f"{source} is neither a file nor a folder. Leave it out.")
    if (real := os.path.realpath(source)) in above:
        raise StorageError(f"{source} is a link to a folder that it lies in. Leave it out.")
    yield TransferItem(source, target, is_directory=True)
    for name in names:
        if not is_hidden(name):
            below = posixpath.join(target, name)
            yield from walk(os.path.join(source, name), below, (*above, real))


def find_existing(directories: Iterable[str]) -> dict[str, FileStatus]:
    """Return the directories that exist and their entries, by path."""
    present = {}
    for path in directories:
        with translated("look at", path):
            names = os.listdir(path) if os.path.isdir(path) else []
            for each in (path, *(os.path.join(path, name) for name in names)):
                if os.path.lexists(each):
                    size = os.path.getsize(each) if os.path.isfile(each) else 0
                    present[each] = FileStatus(each, os.path.isdir(each), size)
    return present


def make_directory(path: str) -> None:
    """Make a directory and those above it."""
    with translated("make directory", path):
        os.makedirs(path, exist_ok=True)


def delete(path: str) -> None:
    """Delete a file; one that is not there is fine."""
    with translated("delete", path):
        if os.path.lexists(path):
            os.unlink(path)


@contextmanager
def pieces(path: str) -> Iterator[Iterator[bytes]]:
    """Open a file; the pieces come in order."""
    with translated("read", path):
        file = open(path, "rb")  # noqa: SIM115  closed below

    def read() -> Iterator[bytes]:
        with translated("read", path):
            yield from iter(lambda: file.read(PIECE_BYTES), b"")

    with file:
        yield read()

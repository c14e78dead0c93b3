"""Files and folders of this machine: listed, read and compared piece by piece."""

from __future__ import annotations

import errno
import os
import posixpath
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from distkeras_grid.errors import NoSpaceError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.checksums import ChecksumLayout, FileDigest
from distkeras_grid.webhdfs.plan import Item, Present, is_hidden
from distkeras_grid.webhdfs.progress import Meter

PIECE_BYTES = 1 << 20


@contextmanager
def translated(action: str, path: str) -> Iterator[None]:
    """Turn an error of the operating system into ours, with the path in the message."""
    try:
        yield
    except FileNotFoundError as error:
        raise PathNotFoundError(f"cannot {action} {path}: it does not exist") from error
    except OSError as error:
        told = f"cannot {action} {path}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(f"{told}; free some space there") from error
        raise StorageError(told) from error


def scan(source: str, target: str) -> Iterator[Item]:
    """Yield a file, or a folder with all below it; links are followed.

    Parameters
    ----------
    source, target : str
        Paths, from and to.

    Raises
    ------
    StorageError
        If something is neither file nor folder, cannot be read, or has a name that is not UTF-8;
        or if links lead round in a circle.
    """
    yield from _scan(source, target, ())


def _scan(source: str, target: str, above: tuple[tuple[int, int], ...]) -> Iterator[Item]:
    with translated("read", source):
        status = os.stat(source)
    path = Path(source)
    if path.is_file():
        yield Item(source, target, size=status.st_size)
        return
    if not path.is_dir():
        raise StorageError(f"{source} is neither a file nor a folder; leave it out")
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise StorageError(f"{source} is a link to a folder that it lies in; leave it out")
    yield Item(source, target, is_directory=True)
    with translated("list", source):
        names = sorted(os.listdir(source))
    for name in names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError as error:
            raise StorageError(f"the name {name!r} in {source} is not UTF-8; rename it") from error
        if not is_hidden(name):
            yield from _scan(
                os.path.join(source, name), posixpath.join(target, name), (*above, here)
            )


def look(paths: Iterable[str]) -> dict[str, Present]:
    """Return what there is of directories, and directly in them, by path."""
    present: dict[str, Present] = {}
    for path in paths:
        if os.path.lexists(path):
            present[path] = _present(path)
        if os.path.isdir(path):
            with translated("list", path):
                names = os.listdir(path)
            found = (os.path.join(path, name) for name in names)
            present |= {each: _present(each) for each in found}
    return present


def _present(path: str) -> Present:
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    return Present(size, is_directory=os.path.isdir(path))


def pieces(path: str, stopped: threading.Event) -> Iterator[bytes]:
    """Yield the content of a file; end with an error when `stopped` is set."""
    with translated("read", path):
        file = open(path, "rb")  # noqa: SIM115  closed below
    with file:
        while True:
            with translated("read", path):
                piece = file.read(PIECE_BYTES)
            if not piece:
                return
            if stopped.is_set():
                raise StorageError(f"{path} was left, for the transfer was stopped")
            yield piece


def digest_of(
    path: str, layout: ChecksumLayout, stopped: threading.Event, meter: Meter | None = None
) -> bytes:
    """Return the checksum that HDFS would have of a file of this machine."""
    digest = FileDigest(layout)
    for piece in pieces(path, stopped):
        digest.update(piece)
        if meter is not None:
            meter.add(len(piece))
    return digest.digest()

"""The side of a transfer that is on this machine."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from distkeras_grid import fsync
from distkeras_grid.errors import NoSpaceError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.checksums import FileChecksum
from distkeras_grid.webhdfs.hidden_names import is_hidden
from distkeras_grid.webhdfs.transfer_plan import ExistingEntry, TransferItem

T = TypeVar("T")

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


class LocalFiles:
    """Files and folders of this machine; links are followed. See `Files`."""

    where = "here"

    def walk(self, source: str, target: str) -> Iterator[TransferItem]:
        """Yield a file, or a folder with all below it."""
        yield from _walk(source, target, ())

    def find_existing(self, directories: Iterable[str]) -> dict[str, ExistingEntry]:
        """Return the directories that exist and their entries, by path."""
        present: dict[str, ExistingEntry] = {}
        for path in directories:
            if os.path.lexists(path):
                present[path] = _present(path)
            if os.path.isdir(path):
                with translated("list", path):
                    names = os.listdir(path)
                paths = (os.path.join(path, name) for name in names)
                present |= {each: _present(each) for each in paths}
        return present

    def present(self, path: str) -> ExistingEntry | None:
        """Return the file or directory at a path, None if there is none."""
        return _present(path) if os.path.lexists(path) else None

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it."""
        with translated("make directory", path):
            os.makedirs(path, exist_ok=True)

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there is fine."""
        with translated("delete", path):
            Path(path).unlink(missing_ok=True)

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:  # noqa: ARG002
        """Rename a file in one step; one that has come to `target` meanwhile is replaced."""
        with translated("rename to", target):
            fsync.replace(source, target)

    def checksum(self, path: str) -> FileChecksum | None:  # noqa: ARG002
        """Return None: this file system keeps no checksum."""
        return None

    @contextmanager
    def pieces(self, path: str) -> Iterator[Iterator[bytes]]:
        """Open a file."""
        with translated("read", path):
            file = open(path, "rb")  # noqa: SIM115  closed below
        with file:
            yield _read(file.read, path)

    def write(self, path: str, content: Iterator[bytes], name: str) -> None:
        """Write a file; errors call it `name`."""
        with translated("write", name), open(path, "wb") as file:
            # An error in `content` is none of the operating system: it comes translated.
            for piece in content:
                file.write(piece)

    def again(self, action: str, path: str, attempt: Callable[[], T]) -> T:  # noqa: ARG002
        """Call a function once: a second call would fail as the first did."""
        return attempt()


def _walk(source: str, target: str, above: tuple[tuple[int, int], ...]) -> Iterator[TransferItem]:
    with translated("read", source):
        status = os.stat(source)
    path = Path(source)
    if path.is_file():
        yield TransferItem(source, target, size=status.st_size)
        return
    if not path.is_dir():
        raise StorageError(f"{source} is neither a file nor a folder. Leave it out.")
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise StorageError(f"{source} is a link to a folder that it lies in. Leave it out.")
    yield TransferItem(source, target, is_directory=True)
    with translated("list", source):
        names = sorted(os.listdir(source))
    for name in names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError as error:
            raise StorageError(
                f"A name in {source} is not UTF-8. Received: {name!r}. Rename it."
            ) from error
        if not is_hidden(name):
            below = posixpath.join(target, name)
            yield from _walk(os.path.join(source, name), below, (*above, here))


def _read(read: Callable[[int], bytes], path: str) -> Iterator[bytes]:
    while True:
        with translated("read", path):
            piece = read(PIECE_BYTES)
        if not piece:
            return
        yield piece


def _present(path: str) -> ExistingEntry:
    with translated("look at", path):
        size = os.path.getsize(path) if os.path.isfile(path) else 0
    return ExistingEntry(size, is_directory=os.path.isdir(path))

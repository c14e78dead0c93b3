"""The side of a transfer that is on HDFS."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

from distkeras_grid.errors import PathNotFoundError
from distkeras_grid.webhdfs.checksums import FileChecksum
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from distkeras_grid.webhdfs.hidden_names import is_hidden
from distkeras_grid.webhdfs.responses import FileStatus
from distkeras_grid.webhdfs.transfer_plan import ExistingEntry, TransferItem

T = TypeVar("T")


class HdfsFiles:
    """Files on HDFS, for one thread; see `Files`."""

    where = "on HDFS"

    def __init__(self, connection: WebHdfsConnection) -> None:
        self._connection = connection
        self.make_directory = connection.make_directory
        self.delete = connection.delete
        self.rename = connection.rename

    def walk(self, source: str, target: str) -> Iterator[TransferItem]:
        """Yield a file, or a directory with all below it."""
        status = self._connection.status(source)
        if status is None:
            raise PathNotFoundError(
                f"Cannot read {source} on HDFS: it does not exist. Check the path."
            )
        yield from self._walk(status, target)

    def _walk(self, status: FileStatus, target: str) -> Iterator[TransferItem]:
        yield TransferItem(status.path, target, status.size, status.is_directory, status.opaque)
        if status.is_directory:
            for each in self._connection.list_directory(status.path):
                if not is_hidden(each.name):
                    yield from self._walk(each, posixpath.join(target, each.name))

    def find_existing(self, directories: Iterable[str]) -> dict[str, ExistingEntry]:
        """Return the directories that exist and their entries, by path.

        Directories are asked from the top, and not below one that is missing.
        """
        present: dict[str, ExistingEntry] = {}
        known: set[str] = set()  # directories whose names are in `present`, or that are missing
        for directory in sorted(directories):
            nowhere = posixpath.dirname(directory) in known and directory not in present
            known.add(directory)
            if nowhere:
                continue
            try:
                entries = self._connection.list_directory(directory)
            except PathNotFoundError:
                continue
            if [each.path for each in entries] != [directory]:  # else it is a file
                present[directory] = ExistingEntry(is_directory=True)
            present |= {each.path: _present(each) for each in entries}
        return present

    def present(self, path: str) -> ExistingEntry | None:
        """Return the file or directory at a path, None if there is none."""
        status = self._connection.status(path)
        return None if status is None else _present(status)

    def checksum(self, path: str) -> FileChecksum | None:
        """Return HDFS' own checksum of a file; None for a kind that is not computed here."""
        return self._connection.checksum(path)

    def pieces(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Open a file, in one try."""
        return self._connection.pieces(path)

    def write(self, path: str, content: Iterator[bytes], name: str) -> None:  # noqa: ARG002
        """Write a file, in one try."""
        self._connection.write(path, content)

    def again(self, action: str, path: str, attempt: Callable[[], T]) -> T:
        """Try until it succeeds, fails for good, or the tries are used up."""
        return self._connection.again(action, path, attempt)


def _present(status: FileStatus) -> ExistingEntry:
    return ExistingEntry(status.size, status.is_directory, status.opaque)

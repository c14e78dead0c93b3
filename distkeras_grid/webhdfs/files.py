"""The interface of both sides of a transfer: files of this machine, and files on HDFS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from distkeras_grid.webhdfs.checksums import ChecksumLayout, FileChecksum, FileDigest
from distkeras_grid.webhdfs.transfer_plan import ExistingEntry, TransferItem

T = TypeVar("T")


class Files(Protocol):
    """One side of a transfer.

    Every method raises `StorageError` with the path in its message. `pieces` and `write` are
    single tries: call them through `again`.
    """

    @property
    def where(self) -> str:
        """Return where the files are, for the end of a message: ``"here"`` or ``"on HDFS"``."""

    def walk(self, source: str, target: str) -> Iterator[TransferItem]:
        """Yield a file, or a folder with all below it, each with its place below `target`."""

    def find_existing(self, directories: Iterable[str]) -> dict[str, ExistingEntry]:
        """Return the directories that exist and their entries, by path."""

    def present(self, path: str) -> ExistingEntry | None:
        """Return the file or directory at a path, None if there is none."""

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it."""

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there is fine."""

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename a file in one step."""

    def checksum(self, path: str) -> FileChecksum | None:
        """Return the checksum that the file system keeps of a file, None where it keeps none."""

    def pieces(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Open a file; the pieces come in order."""

    def write(self, path: str, content: Iterator[bytes], name: str) -> None:
        """Write a file in place of one that exists; errors call it `name`."""

    def again(self, action: str, path: str, attempt: Callable[[], T]) -> T:
        """Call a function, again where that may help, and return its result."""


def digest_of(
    files: Files,
    path: str,
    layout: ChecksumLayout,
    through: Callable[[Iterator[bytes]], Iterator[bytes]],
) -> bytes:
    """Return the checksum that HDFS would have of a file, read anew."""

    def attempt() -> bytes:
        digest = FileDigest(layout)
        with files.pieces(path) as content:
            for piece in through(content):
                digest.update(piece)
        return digest.digest()

    return files.again("read", path, attempt)

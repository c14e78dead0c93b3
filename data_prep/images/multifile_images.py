"""Images that are folders (OME-Zarr), used where an open file is expected."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from distkeras_grid.errors import ConfigurationError, NoSpaceError
from distkeras_grid.feeding.local_file import local_folder

if TYPE_CHECKING:
    from distkeras_grid.webhdfs.connection import WebHdfsConnection

ENDING = ".zarr"
# Files in the folder are read in pieces of this many bytes.
READ_BYTES = 8 << 20


def is_folder(uri: str) -> bool:
    """Tell whether an image is a folder, by its name."""
    return uri.endswith(ENDING)


def refuse_folders(uris: Iterable[str]) -> None:
    """Refuse images that are folders, where only single files can be read."""
    if (first := next(filter(is_folder, uris), None)) is not None:
        raise ConfigurationError(
            f"{first} is a folder, and can only be read from local and mounted paths, or from HDFS "
            "by WebHDFS; not by local sets. Pack it into one .ozx file."
        )


def check_disk_space(size: int) -> None:
    """Check that the local disk has room for the copy of an image.

    `size`: bytes.
    """
    folder = local_folder()
    free = shutil.disk_usage(folder).free
    if size > free:
        raise NoSpaceError(
            "The library that reads this image needs a copy of it on the local disk of the task, "
            f"{folder}. Received: {size:,} bytes, with {free:,} bytes free. Free some space, or "
            "point spark.local.dir at a larger disk."
        )


class Folder(BytesIO):
    """A folder on this machine; an empty stream, so that it can be passed like a file."""

    def __init__(self, path: Path, resources: ExitStack | None = None) -> None:
        super().__init__()
        self.path = path
        self._resources = resources or ExitStack()

    def files(self) -> list[Path]:
        """Return all files below it, sorted by their paths."""
        return sorted(
            Path(folder, name)
            for folder, _, names in os.walk(self.path, onerror=_raise)
            for name in names
        )

    @property
    def length(self) -> int:
        """Size of all files, bytes."""
        return sum(path.stat().st_size for path in self.files())

    def state(self) -> object:
        """Return a value that differs once a file has changed."""
        files = ((path, path.stat()) for path in self.files())
        return [(path, each.st_ino, each.st_size, each.st_mtime_ns) for path, each in files]

    def sha256(self) -> str:
        """Return the digest of the names and contents of all files."""
        digest = hashlib.sha256()
        for path in self.files():
            digest.update(path.relative_to(self.path).as_posix().encode() + b"\0")
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def close(self) -> None:
        """Delete the copies of files."""
        self._resources.close()
        super().close()


def copy_to_local(connection: WebHdfsConnection, path: str) -> Folder:
    """Return a copy of a folder on HDFS, on the local disk."""
    check_disk_space(connection.size(path))
    with ExitStack() as resources:
        target = resources.enter_context(tempfile.TemporaryDirectory(dir=local_folder()))
        _copy(connection, path, Path(target))
        return Folder(Path(target), resources.pop_all())


def _copy(connection: WebHdfsConnection, source: str, target: Path) -> None:
    for entry in connection.list_directory(source):
        if entry.is_directory:
            (target / entry.name).mkdir()
            _copy(connection, entry.path, target / entry.name)
            continue
        with (target / entry.name).open("wb") as file:
            for start in range(0, entry.size, READ_BYTES):
                count = min(READ_BYTES, entry.size - start)
                file.write(connection.read_range(entry.path, start, count))


def _raise(error: OSError) -> None:
    raise error

"""How a task gets the bytes of an image: it opens the file itself if it can.

Then only paths pass through Spark. Local and mounted files are opened directly, those on HDFS by
WebHDFS. Of a large file only the requested parts are read. Files on other paths (object stores,
HDFS with Kerberos, for which a task has no tickets) are read by Spark, whose rows hold at most 2 GB
and are copied on the way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from data_prep.images.multifile_images import Folder, copy_to_local, is_folder
from data_prep.images.own_readers import has_own_reader
from distkeras_grid.errors import (
    GridError,
    PathNotFoundError,
    StorageError,
    UnreadableImageError,
)
from distkeras_grid.spark.internals import hadoop_of
from distkeras_grid.spark.storage import Storage
from distkeras_grid.stores.range_reader import RangeReader
from distkeras_grid.webhdfs.addresses import Address, namenode_urls, parse_path
from distkeras_grid.webhdfs.failures import Unreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from distkeras_grid.webhdfs.connection import WebHdfsConnection

FILE, WEBHDFS, SPARK = "file", "webhdfs", "spark"
# Larger files are read where they are, a part at a time; smaller ones at once [bytes].
IN_MEMORY_BYTES = 64 << 20
# No image file is larger. Formats allow less, see `data_prep.images.open_image`.
MOST_BYTES = 1 << 42
# Bytes that are read at once for a digest alone.
DIGEST_BYTES = 8 << 20
# Neighbouring parts of a file on HDFS are requested together.
RANGE_BYTES = 1 << 20
# Most bytes that a row of Spark can hold.
MOST_ROW_BYTES = (2 << 30) - (64 << 20)
# A healthy NameNode answers in milliseconds, but a task tries other DataNodes if one is gone.
TASK_SECONDS = 30.0

_CONNECTIONS: dict[Address, WebHdfsConnection] = {}


class OpenFile:
    """The bytes of one image, open for reading; use it in a ``with`` block.

    `state`: returns a value that differs once the file has changed; not needed where all bytes are
    held.
    """

    def __init__(
        self,
        stream: BinaryIO,
        state: Callable[[], object] | None = None,
        name: str = "The image",
        before: object = None,
    ) -> None:
        self.stream = stream
        self._name = name
        self._state = state or (lambda: None)
        self._before = self._state() if before is None else before
        self._followed: _HashingReader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.close()

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return an open `OpenFile` of the bytes."""
        return cls(BytesIO(content))

    def follow(self) -> None:
        """Compute the digest from what is read anyway; call it before anything is read."""
        if not isinstance(self.stream, BytesIO):
            self._followed = _HashingReader(self.stream)
            self.stream = BufferedReader(self._followed)

    @property
    def version(self) -> str:
        """Text that differs once the file has changed; empty if only its bytes can tell."""
        if self._before is None:
            return ""
        return hashlib.sha256(repr(self._before).encode()).hexdigest()

    @property
    def is_changed(self) -> bool:
        """Whether the file has changed since it was opened."""
        try:
            return self._state() != self._before
        except (OSError, StorageError):
            return True

    def read(self) -> bytes:
        """Return all bytes."""
        try:
            self.stream.seek(0)
            return self.stream.read()
        except (OSError, StorageError) as error:
            raise UnreadableImageError(f"{self._name} cannot be read: {_reason(error)}") from error

    def sha256(self) -> str:
        """Return the digest of all bytes."""
        try:
            if isinstance(self.stream, Folder):
                return self.stream.sha256()
            if self._followed is not None:
                return self._rest_of(self._followed)
            self.stream.seek(0)
            digest = hashlib.file_digest(cast("BufferedReader", self.stream), "sha256").hexdigest()
            self.stream.seek(0)
        except (OSError, StorageError) as error:
            raise UnreadableImageError(f"{self._name} cannot be read: {_reason(error)}") from error
        return digest

    def _rest_of(self, followed: _HashingReader) -> str:
        """Read what is missing in a digest, and return it."""
        self.stream.seek(followed.known)
        piece = bytearray(DIGEST_BYTES)
        while self.stream.readinto(piece):  # type: ignore[attr-defined]
            pass
        self.stream.seek(0)
        return followed.hexdigest()


class _HashingReader(RawIOBase):
    """A file whose digest is computed from what is read of it.

    Bytes count in the order of the file. What is read before its turn, such as tags at the end of a
    TIFF, does not count, and is read once more for the digest.

    `known`: so many bytes, from the first, are in the digest.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._digest = hashlib.sha256()
        self.known = 0
        # Some libraries open a local file themselves.
        if isinstance(name := getattr(file, "name", None), str):
            self.name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, target: Any) -> int:
        wanted = memoryview(target).cast("B")
        start = self._file.tell()
        count: int = self._file.readinto(wanted)  # type: ignore[attr-defined]
        if start <= self.known < start + count:
            self._digest.update(wanted[self.known - start : count])
            self.known = start + count
        return count

    def hexdigest(self) -> str:
        """Return the digest of the bytes that are known."""
        return self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()


def open_local(path: str | Path) -> OpenFile:
    """Open a local or mounted file, or an image that is a folder."""
    if is_folder(str(path)) and os.path.isdir(path):
        folder = Folder(Path(path))
        return OpenFile(folder, folder.state, str(path))
    stream = open(path, "rb")  # noqa: SIM115  closed by Content
    opened = os.fstat(stream.fileno())
    # A reader of another package may look for files beside this one, by its path.
    if opened.st_size <= IN_MEMORY_BYTES and not has_own_reader(str(path)):
        with stream:
            return OpenFile.of(stream.read())

    def state() -> object:
        return _identity(os.stat(path))

    # Another file may have got the path just now.
    return OpenFile(stream, state, str(path), _identity(opened))


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def open_web(connection: WebHdfsConnection, path: str) -> OpenFile:
    """Open a file on HDFS; an image that is a folder is copied."""
    status = connection.status(path)
    if status is not None and status.is_directory and is_folder(path):
        return OpenFile(copy_to_local(connection, path), name=path)
    if status is None or status.size <= IN_MEMORY_BYTES:
        # If the file is missing, this request raises the error.
        content = connection.read_range(path, 0, IN_MEMORY_BYTES + 1)
        if len(content) > IN_MEMORY_BYTES:
            raise StorageError(f"{path} grows while it is read. Read it when it is complete.")
        return OpenFile.of(content)
    size = status.size

    def state() -> object:
        return connection.status(path)

    ranges = RangeReader(lambda start, count: connection.read_range(path, start, count), size)
    return OpenFile(BufferedReader(ranges, RANGE_BYTES), state, path, status)


@dataclass(frozen=True)
class FileOpener:
    """How tasks open the images of a job."""

    kind: str
    address: Address | None = None  # Address of WebHDFS
    why: str = field(default="", compare=False)  # Why contents pass through Spark

    @property
    def most_bytes(self) -> int:
        """Size of the largest file that can be read, bytes."""
        return MOST_ROW_BYTES if self.kind == SPARK else MOST_BYTES

    def describe(self) -> str:
        """Return a line for a person."""
        if self.kind == SPARK:
            return (
                f"The images' contents travel through Spark, for {self.why}. Files above 2 GB are "
                "left out."
            )
        by = f"WebHDFS at {self.address.urls[0]}" if self.address else "their path"
        return f"Each task opens its images itself, by {by}."

    def open(self, uri: str) -> OpenFile:
        """Open a file."""
        try:
            if self.address is None:
                return open_local(local_path(uri))
            return open_web(connection_to(self.address), parse_path(uri).path)
        except (FileNotFoundError, PathNotFoundError) as error:
            raise UnreadableImageError(f"{uri} is gone. Nothing else is known of it.") from error
        except (OSError, StorageError) as error:
            raise UnreadableImageError(f"{uri} cannot be read: {_reason(error)}") from error


def local_path(uri: str) -> str:
    """Return the local path of a file from the path that Hadoop uses.

    Examples
    --------
    >>> local_path("file:/raw images/0 [x].png"), local_path("file:///raw/0.png")
    ('/raw images/0 [x].png', '/raw/0.png')
    """
    return "/" + uri.removeprefix("file:").lstrip("/")


def choose_opening(spark: SparkSession, folder: str) -> FileOpener:
    """Return how tasks open the files in a folder.

    On HDFS, one task tries whether WebHDFS answers.
    """
    scheme = folder.partition(":")[0]
    if scheme == "file":
        return FileOpener(FILE)
    if scheme != "hdfs":
        return FileOpener(SPARK, why=f"tasks cannot open {scheme}: themselves")
    configuration = hadoop_of(spark)[1]
    if configuration.get("hadoop.security.authentication", "simple").lower() == "kerberos":
        return FileOpener(SPARK, why="tasks have no Kerberos ticket")
    try:
        place = parse_path(folder)
        urls = namenode_urls(configuration, place.authority)
    except GridError as error:
        return FileOpener(SPARK, why=f"WebHDFS cannot be asked ({_reason(error)})")
    address = Address(urls, Storage(spark).user())
    uri = Storage(spark).first_file(folder)
    file = None if uri is None else parse_path(uri).path
    if why := _in_task(spark, partial(why_no_webhdfs, address, place.path, file)):
        return FileOpener(SPARK, why=f"the nodes cannot reach WebHDFS ({why})")
    return FileOpener(WEBHDFS, address)


def _in_task(spark: SparkSession, ask: Callable[[], str]) -> str:
    return str(spark.sparkContext.parallelize([None], 1).map(lambda _: ask()).first())


def why_no_webhdfs(address: Address, path: str, file: str | None) -> str:
    """Return why a task cannot reach WebHDFS; empty if it can.

    `file`: the path of a file in it that is read as a trial, or None.
    """
    from distkeras_grid.webhdfs.connection import WebHdfsConnection

    stopped = Event()

    def ask() -> str:
        # A connection of its own: if nothing answers in time, nobody waits for it any more.
        with WebHdfsConnection(address, stopped=stopped) as connection:
            connection.status(path)
            try:
                if file is not None:
                    connection.read_range(file, 0, 1)
            except StorageError as error:
                # A DataNode that refuses this file can be reached.
                return _reason(error) if isinstance(error.__cause__, Unreachable) else ""
        return ""

    # In a thread, because resolving a wrong host name may take minutes.
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(ask).result(TASK_SECONDS)
    except NoAnswer:
        stopped.set()
        return f"no answer within {TASK_SECONDS:g} s"
    except StorageError as error:
        return _reason(error)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def connection_to(address: Address) -> WebHdfsConnection:
    """Return the one connection of this process to WebHDFS at an address."""
    from distkeras_grid.webhdfs.connection import WebHdfsConnection

    if address not in _CONNECTIONS:
        _CONNECTIONS[address] = WebHdfsConnection(address)
    return _CONNECTIONS[address]


def _reason(error: BaseException) -> str:
    text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return text or type(error).__name__

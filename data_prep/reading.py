"""How a task gets the bytes of an image: it opens the file itself where it can.

Only paths travel through Spark then. Local and mounted files are opened as such, those on HDFS by
WebHDFS. Other paths (object stores, HDFS with Kerberos, for whose tickets a task cannot ask) are
read by Spark, whose rows hold no more than 2 GB and are copied on their way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from distkeras_grid.errors import GridError, ImageError, StorageError
from distkeras_grid.webhdfs.addresses import Address, namenode_urls, parse_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from distkeras_grid.webhdfs.connection import Connection

FILE, WEBHDFS, SPARK = "file", "webhdfs", "spark"
# Larger files are read by region or not at all: a task holds a file's bytes and its pixels.
MOST_BYTES = 4 << 30
# What a row of Spark can hold.
MOST_ROW_BYTES = (2 << 30) - (64 << 20)
# A NameNode that is well answers in milliseconds.
ANSWER_SECONDS = 10.0

_CONNECTIONS: dict[Address, Connection] = {}


@dataclass(frozen=True)
class Opening:
    """How tasks open the images of a job.

    Parameters
    ----------
    kind : {"file", "webhdfs", "spark"}
    address : Address, optional
        Where WebHDFS answers.
    why : str, default ""
        Why contents go through Spark.
    """

    kind: str
    address: Address | None = None
    why: str = field(default="", compare=False)

    @property
    def most_bytes(self) -> int:
        """Bytes of the largest file that is read."""
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

    def read(self, uri: str) -> bytes:
        """Return the bytes of a file.

        Raises
        ------
        ImageError
            If it is gone, forbidden, or does not answer.
        """
        try:
            if self.address is None:
                with open(local_path(uri), "rb") as stream:
                    return stream.read()
            return _read_web(self.address, uri)
        except FileNotFoundError as error:
            raise ImageError(f"{uri} is gone. Nothing else is known of it.") from error
        except (OSError, StorageError) as error:
            raise ImageError(f"{uri} cannot be read: {_reason(error)}") from error


def local_path(uri: str) -> str:
    """Return the path of a file as Hadoop names it.

    Examples
    --------
    >>> local_path("file:/raw images/0 [x].png"), local_path("file:///raw/0.png")
    ('/raw images/0 [x].png', '/raw/0.png')
    """
    return "/" + uri.removeprefix("file:").lstrip("/")


def choose_opening(spark: SparkSession, folder: str, *, timeout: float = ANSWER_SECONDS) -> Opening:
    """Return how tasks open what lies in a folder.

    Parameters
    ----------
    spark : SparkSession
    folder : str
        The whole path: scheme, host and directories.
    timeout : float
        So long WebHDFS may take to answer [s].
    """
    scheme = folder.partition(":")[0]
    if scheme == "file":
        return Opening(FILE)
    if scheme != "hdfs":
        return Opening(SPARK, why=f"tasks cannot open {scheme}: themselves")
    configuration = _Configuration(spark)
    if configuration.get("hadoop.security.authentication", "simple").lower() == "kerberos":
        return Opening(SPARK, why="tasks have no Kerberos ticket")
    try:
        place = parse_path(folder)
        urls = namenode_urls(cast("Mapping[str, str]", configuration), place.authority)
        address = Address(urls, configuration.user)
        _in_time(lambda: _connection(address).status(place.path), timeout)
    except (GridError, NoAnswer) as error:
        return Opening(SPARK, why=f"WebHDFS cannot be asked ({_reason(error)})")
    return Opening(WEBHDFS, address)


class _Configuration:
    """Hadoop's configuration in the driver's JVM, as far as `namenode_urls` asks."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._values = context._jsc.hadoopConfiguration()
        users = context._jvm.org.apache.hadoop.security.UserGroupInformation
        self.user = str(users.getCurrentUser().getShortUserName())

    def get(self, name: str, default: str = "") -> str:
        """Return a setting."""
        return str(self._values.get(name, default))


def _in_time(ask: Callable[[], object], timeout: float) -> None:
    """Ask in a thread, for a name that resolves to nothing may take minutes."""
    pool = ThreadPoolExecutor(1)
    try:
        pool.submit(ask).result(timeout)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _connection(address: Address) -> Connection:
    from distkeras_grid.webhdfs.connection import Connection

    if address not in _CONNECTIONS:
        _CONNECTIONS[address] = Connection(address)
    return _CONNECTIONS[address]


def _read_web(address: Address, uri: str) -> bytes:
    connection, path = _connection(address), parse_path(uri).path

    def attempt() -> bytes:
        with connection.pieces(path) as pieces:
            return b"".join(pieces)

    return connection.again("read", path, attempt)


def _reason(error: BaseException) -> str:
    told = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return told or type(error).__name__

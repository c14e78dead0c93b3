"""Folders that a worker reads by itself: local, on HDFS, or served by HTTP.

Every wait has a limit.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from distkeras_grid.errors import ConfigurationError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.addresses import WEB_SCHEMES, find_address, parse_path, shown
from distkeras_grid.webhdfs.network import close_session, direct_session, read_all, root_cause

if TYPE_CHECKING:
    from distkeras_grid.webhdfs.connection import WebHdfsConnection

# Seconds to connect, to wait for the next packet, and to read a few dozen megabytes.
CONNECT_SECONDS = 20
SILENCE_SECONDS = 60
READ_SECONDS = 600
#: Schemes of locations. A location without a scheme is a local path.
SCHEMES = ("file", "hdfs", *WEB_SCHEMES, "http", "https")


class Location(Protocol):
    """A folder with a copy of the data."""

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Return some bytes of a file.

        `stop`: one more than the last byte.
        """
        ...

    def close(self) -> None:
        """Close connections. A second call has no effect."""
        ...


def scheme_of(location: str) -> str:
    """Return the scheme of a location.

    Examples
    --------
    >>> scheme_of("/data/tiles"), scheme_of("http://host/tiles")
    ('file', 'http')
    """
    scheme, colon, _ = location.partition(":")
    if not colon or "/" in scheme:
        scheme = "file"
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"Workers read data from {', '.join(SCHEMES)}, and from paths that all hosts see. "
            f"Received: {shown(location)!r}. Copy the data to one of these, and name it in mirrors."
        )
    return scheme


def open_location(location: str) -> Location:
    """Return a reader of a location. No connection is made before the first read."""
    scheme = scheme_of(location)
    if scheme == "file":
        return _Local(location)
    if scheme == "hdfs" or scheme in WEB_SCHEMES:
        return _Hdfs(location)
    return _Web(location)


class _Local:
    def __init__(self, location: str) -> None:
        path = location.removeprefix("file:")
        self._folder = Path("/" + path.lstrip("/") if location.startswith("file:") else path)

    def read(self, path: str, start: int, stop: int) -> bytes:
        whole = self._folder / path
        try:
            with open(whole, "rb") as stream:
                stream.seek(start)
                return stream.read(stop - start)
        except FileNotFoundError as error:
            raise PathNotFoundError(f"There is no file {whole} on this host.") from error
        except OSError as error:
            raise StorageError(f"{whole} cannot be read on this host: {error}.") from error

    def close(self) -> None:
        pass


class _Hdfs:
    def __init__(self, location: str) -> None:
        self._place = parse_path(location)
        self._open: WebHdfsConnection | None = None

    def read(self, path: str, start: int, stop: int) -> bytes:
        from distkeras_grid.webhdfs.connection import WebHdfsConnection

        if self._open is None:
            self._open = WebHdfsConnection(find_address(self._place))
        whole = posixpath.join(self._place.path, path)
        return self._open.read_range(whole, start, stop - start, seconds=READ_SECONDS)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class _Web:
    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")
        self._session = direct_session()

    def read(self, path: str, start: int, stop: int) -> bytes:
        import urllib3

        url = f"{self._location}/{quote(path)}"
        try:
            return self._range(url, start, stop)
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise StorageError(f"{shown(url)} cannot be read: {root_cause(error)}.") from error

    def _range(self, url: str, start: int, stop: int) -> bytes:
        with self._session.get(
            url,
            headers={"Range": f"bytes={start}-{stop - 1}"},
            timeout=(CONNECT_SECONDS, SILENCE_SECONDS),
            stream=True,
        ) as answer:
            if answer.status_code == 404:
                raise PathNotFoundError(f"There is no file at {shown(url)}.")
            if answer.status_code not in (200, 206):
                raise StorageError(f"{shown(url)} cannot be read: status {answer.status_code}.")
            # Some servers do not support ranges and send the whole file.
            content = read_all(answer.raw.read1, READ_SECONDS)
            return content if answer.status_code == 206 else content[start:stop]

    def close(self) -> None:
        close_session(self._session)

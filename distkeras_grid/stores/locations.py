"""Folders that a worker reads by itself: local, on HDFS, or served by HTTP or FTP.

fsspec reads HTTP and FTP. HDFS has the project's own client (`distkeras_grid.webhdfs`), because
fsspec's has no timeouts and knows only one NameNode. Every wait has a limit.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from distkeras_grid.errors import ConfigurationError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.addresses import WEB_SCHEMES, find_address, parse_path, shown

if TYPE_CHECKING:
    from distkeras_grid.webhdfs.connection import WebHdfsConnection

# Seconds to connect, to wait for the next packet, and to read a few dozen megabytes.
CONNECT_SECONDS = 20
SILENCE_SECONDS = 60
READ_SECONDS = 600
#: Schemes of locations. A location without a scheme is a local path.
SCHEMES = ("file", "hdfs", *WEB_SCHEMES, "http", "https", "ftp")


class Location(Protocol):
    """A folder with a copy of the data."""

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        """Return some bytes of a file.

        `stop`: one more than the last byte; None for the end of the file.
        """
        ...

    def close(self) -> None:
        """Close connections. A second call has no effect."""
        ...


def scheme_of(location: str) -> str:
    """Return the scheme of a location.

    Examples
    --------
    >>> scheme_of("/data/tiles"), scheme_of("ftp://host/tiles")
    ('file', 'ftp')
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
    return _Ftp(location) if scheme == "ftp" else _Web(location)


class _Local:
    def __init__(self, location: str) -> None:
        path = location.removeprefix("file:")
        self._folder = Path("/" + path.lstrip("/") if location.startswith("file:") else path)

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        whole = self._folder / path if path else self._folder
        try:
            with open(whole, "rb") as stream:
                stream.seek(start)
                return stream.read() if stop is None else stream.read(stop - start)
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

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        from distkeras_grid.webhdfs.connection import WebHdfsConnection

        if self._open is None:
            self._open = WebHdfsConnection(find_address(self._place))
        whole = posixpath.join(self._place.path, path).rstrip("/")
        count = None if stop is None else stop - start
        return self._open.read_range(whole, start, count, seconds=READ_SECONDS)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class _Web:
    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")
        self._files: Any = None

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        import aiohttp

        url = f"{self._location}/{quote(path)}" if path else self._location
        whole = start == 0 and stop is None
        try:
            # Some servers do not support ranges and send the whole file.
            content: bytes = self._system().cat_file(
                url, start=None if whole else start, end=None if whole else stop
            )
        except FileNotFoundError as error:
            raise PathNotFoundError(f"There is no file at {url}.") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise StorageError(f"{url} cannot be read: {_reason(error)}.") from error
        expected = None if stop is None else stop - start
        return content[start:stop] if expected and len(content) > expected else content

    def close(self) -> None:
        from fsspec.asyn import sync

        files, self._files = self._files, None
        if files is not None:
            # fsspec would close its connections when the next garbage is collected.
            files.close_session(files.loop, sync(files.loop, files.set_session))

    def _system(self) -> Any:
        import aiohttp
        import fsspec

        if self._files is None:
            limits = aiohttp.ClientTimeout(
                total=READ_SECONDS, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
            )
            self._files = fsspec.filesystem(
                "http",
                encoded=True,
                client_kwargs={"timeout": limits},
                skip_instance_cache=True,
            )
        return self._files


class _Ftp:
    def __init__(self, location: str) -> None:
        self._parts = urlsplit(location)
        self._files: Any = None

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        import ftplib

        whole = posixpath.join(unquote(self._parts.path) or "/", path).rstrip("/")
        shown = f"ftp://{self._parts.hostname}{whole}"
        try:
            content: bytes = self._system().cat_file(whole, start=start or None, end=stop)
        except FileNotFoundError as error:
            self.close()
            raise PathNotFoundError(f"There is no file {shown}.") from error
        except (ftplib.Error, OSError, EOFError) as error:
            # A late reply would be taken for the answer to the next request.
            self.close()
            raise StorageError(f"{shown} cannot be read: {_reason(error)}.") from error
        return content

    def close(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.ftp.close()

    def _system(self) -> Any:
        import fsspec

        if self._files is None:
            self._files = fsspec.filesystem(
                "ftp",
                host=self._parts.hostname,
                port=self._parts.port or 21,
                username=unquote(self._parts.username or "") or None,
                password=unquote(self._parts.password or "") or None,
                timeout=SILENCE_SECONDS,
                # Its connection is for one request at a time.
                skip_instance_cache=True,
            )
        return self._files


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__

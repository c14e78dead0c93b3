"""From HDFS to this machine, and what lies there."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from distkeras_grid.errors import OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.addresses import find_address, parse_path
from distkeras_grid.webhdfs.checksums import ChecksumLayout, FileChecksum, FileDigest
from distkeras_grid.webhdfs.connection import Connection, FileStatus
from distkeras_grid.webhdfs.local_files import digest_of, look, translated
from distkeras_grid.webhdfs.plan import (
    Item,
    Present,
    check,
    hidden_name,
    is_hidden,
    leftovers,
    missing_directories,
    root_of,
)
from distkeras_grid.webhdfs.pool import Pool, Transferred, check_threads
from distkeras_grid.webhdfs.progress import Meter, TransferLine
from distkeras_grid.webhdfs.upload import THREADS, digest_on_hdfs


def download(
    source: str,
    target: str | os.PathLike[str] = ".",
    *,
    url: str | None = None,
    threads: int = THREADS,
    overwrite: bool = False,
    kerberos: bool | None = None,
    stream: TextIO | None = None,
) -> Transferred:
    """Copy a file or a folder from HDFS, over HTTP.

    Each file is written under a hidden name, compared with HDFS' own checksum, and renamed: it
    appears whole or not at all. Files that are here with the same content are left out.

    Parameters
    ----------
    source : str
        ``/path``, ``hdfs:///path`` or ``webhdfs://HOST:PORT/path``. A folder keeps its name below
        `target`; what lies in it goes straight to `target` if its path ends in a slash.
    target : path, default "."
        A folder, made where it is missing. For a single file also its new name.
    url, threads, overwrite, kerberos, stream
        As in `upload`.

    Returns
    -------
    Transferred

    Raises
    ------
    ConfigurationError
        If the address cannot be told, or an argument is wrong.
    OutputExistsError
        If a file differs from the one at its target, and `overwrite` is false.
    StorageError
        If files cannot be read or written; `PathNotFoundError` and `NoSpaceError` where all failed
        for that.

    Examples
    --------
    >>> download("/runs/first", "models", url="http://namenode:9870")    # doctest: +SKIP
    Transferred(files=3, size=1204321, same_files=0, same_size=0, seconds=0.3)
    """
    check_threads(threads)
    place = parse_path(source)
    address = find_address(place, url=url, kerberos=kerberos)
    given = os.fspath(target)
    stopped = threading.Event()
    with TransferLine("looking at what is on HDFS", stream=stream) as line:
        connection = Connection(address, stopped=stopped)
        there = connection.status(place.path)
        if there is None:
            raise PathNotFoundError(f"cannot read {place.path} on HDFS: it does not exist")
        root = root_of(
            place.path,
            os.path.normpath(given),
            is_directory=there.is_directory,
            inside=place.inside or place.path == "/",
            may_rename=not given.endswith("/") and not os.path.isdir(given),
        )
        items = list(walk(connection, there, root))
        line.begin("looking at what is here")
        present = look(
            {item.target if item.is_directory else _parent(item.target) for item in items}
        )
        check(items, present)
        files = [item for item in items if not item.is_directory]
        for path in leftovers((item.target for item in files), present):
            with translated("delete", path):
                os.unlink(path)
        for path in missing_directories(items, present):
            with translated("make directory", path):
                os.makedirs(path, exist_ok=True)
        line.begin("fetching", files=len(files), size=sum(item.size for item in files))
        fetcher = Fetcher(present, overwrite=overwrite, stopped=stopped)
        return Pool(address, threads, line, stopped).run(files, fetcher.fetch)


def list_directory(
    path: str, *, url: str | None = None, kerberos: bool | None = None
) -> list[FileStatus]:
    """Return what lies in a directory on HDFS, sorted by name; of a file, its own status.

    Parameters
    ----------
    path : str
        ``/path``, ``hdfs:///path`` or ``webhdfs://HOST:PORT/path``.
    url, kerberos
        As in `upload`.

    Raises
    ------
    ConfigurationError
        If the address cannot be told.
    StorageError
        If HDFS refuses; `PathNotFoundError` if there is no such path.

    Examples
    --------
    >>> [each.name for each in list_directory("/raw")]                   # doctest: +SKIP
    ['basalt', 'granite']
    """
    place = parse_path(path)
    return Connection(find_address(place, url=url, kerberos=kerberos)).list_directory(place.path)


def walk(connection: Connection, status: FileStatus, target: str) -> Iterator[Item]:
    """Yield a file, or a directory with all below it.

    Raises
    ------
    StorageError
        If a name would lead out of the target.
    """
    yield Item(status.path, target, status.size, status.is_directory, status.opaque)
    if not status.is_directory:
        return
    for each in connection.list_directory(status.path):
        if each.name in ("", ".", ".."):
            raise StorageError(f"HDFS gives a name that is none in {status.path}: {each.name!r}")
        if not is_hidden(each.name):
            yield from walk(connection, each, os.path.join(target, each.name))


class Fetcher:
    """Fetches one file after the other, by many threads.

    Parameters
    ----------
    present : mapping
        What is here, by path.
    overwrite : bool
        Whether files that differ are replaced.
    stopped : Event
        Ends the fetching.
    """

    def __init__(
        self, present: dict[str, Present], *, overwrite: bool, stopped: threading.Event
    ) -> None:
        self._present = present
        self._overwrite = overwrite
        self._stopped = stopped
        self._run = uuid.uuid4().hex[:8]

    def fetch(self, connection: Connection, item: Item, meter: Meter) -> bool:
        """Fetch a file; return False if it is here already.

        Raises
        ------
        StorageError
            If it cannot be; nothing of it is left here then.
        """
        checksum = None if item.opaque else connection.checksum(item.source)
        there = self._present.get(item.target)
        if there is not None:
            if there.size == item.size and self._is_same(connection, item, checksum, meter):
                return False
            meter.reset()
            if not self._overwrite:
                raise OutputExistsError(
                    f"{item.target} is here already and differs from {item.source} on HDFS; "
                    "--overwrite, or overwrite=True, replaces it"
                )
        hidden = Path(hidden_name(item.target, self._run))
        try:
            self._write(connection, item, hidden, checksum, meter)
            with translated("rename to", item.target):
                hidden.replace(item.target)
        finally:
            hidden.unlink(missing_ok=True)
        return True

    def _write(
        self,
        connection: Connection,
        item: Item,
        hidden: Path,
        checksum: FileChecksum | None,
        meter: Meter,
    ) -> None:
        layout = checksum.layout if checksum else ChecksumLayout()

        def take(content: Iterator[bytes]) -> FileDigest:
            meter.reset()
            digest = FileDigest(layout)
            with translated("write", item.target):
                file = hidden.open("wb")
            with file:
                for piece in content:
                    if self._stopped.is_set():
                        raise StorageError(f"{item.source} was left; the transfer was stopped")
                    # Only the writing: an error of the connection is one of the system, too.
                    with translated("write", item.target):
                        file.write(piece)
                    digest.update(piece)
                    meter.add(len(piece))
                with translated("write", item.target):
                    file.flush()
            return digest

        digest = connection.fetch(item.source, take)
        if digest.size != item.size:
            raise StorageError(
                f"{item.source} on HDFS has {item.size:,} bytes, {digest.size:,} have arrived; if "
                "nobody writes to it, try again"
            )
        if checksum is not None and digest.digest() != checksum.digest:
            raise StorageError(
                f"{item.source} has another checksum here than on HDFS; if nobody writes to it, "
                "try again"
            )

    def _is_same(
        self, connection: Connection, item: Item, checksum: FileChecksum | None, meter: Meter
    ) -> bool:
        layout = checksum.layout if checksum else ChecksumLayout()
        here = digest_of(item.target, layout, self._stopped, meter)
        if checksum is not None:
            return here == checksum.digest
        return here == digest_on_hdfs(connection, item.source, layout)


def _parent(path: str) -> str:
    return os.path.dirname(path)

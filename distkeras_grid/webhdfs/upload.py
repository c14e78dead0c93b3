"""From this machine to HDFS."""

from __future__ import annotations

import os
import posixpath
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TextIO

from distkeras_grid.errors import (
    ConfigurationError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.webhdfs.addresses import find_address, parse_path
from distkeras_grid.webhdfs.checksums import ChecksumLayout, FileDigest
from distkeras_grid.webhdfs.connection import Connection
from distkeras_grid.webhdfs.local_files import digest_of, pieces, scan
from distkeras_grid.webhdfs.plan import (
    Item,
    Present,
    check,
    check_names,
    hidden_name,
    is_hidden,
    leftovers,
    missing_directories,
    root_of,
)
from distkeras_grid.webhdfs.pool import Pool, Transferred, check_threads
from distkeras_grid.webhdfs.progress import Meter, TransferLine

THREADS = 4


def upload(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str,
    *,
    url: str | None = None,
    threads: int = THREADS,
    overwrite: bool = False,
    kerberos: bool | None = None,
    stream: TextIO | None = None,
) -> Transferred:
    """Copy files and folders to HDFS, over HTTP.

    Each file is written under a hidden name, compared by HDFS' own checksum, and renamed: it
    appears whole or not at all. Files that are there with the same content are left out, so the
    same call again goes on where one that was cut off has ended. A file that fails does not keep
    the others from being copied.

    Parameters
    ----------
    sources : path or sequence of paths
        Files, and folders with all below them. A folder keeps its name below `target`; what lies
        in it goes straight to `target` if its path ends in a slash.
    target : str
        A folder on HDFS, made where it is missing: ``/path``, ``hdfs:///path`` or
        ``webhdfs://HOST:PORT/path``. For a single file also its new name.
    url : str, optional
        ``http://NAMENODE:9870``; by default ``WEBHDFS_URL``, or what ``HADOOP_CONF_DIR`` says.
    threads : int, default 4
        Files that are sent at once, from 1 to 64.
    overwrite : bool, default False
        Replace files that differ.
    kerberos : bool, optional
        By default as ``HADOOP_CONF_DIR`` says.
    stream : text file, optional
        Where the progress line goes; see `TransferLine`.

    Returns
    -------
    Transferred

    Raises
    ------
    ConfigurationError
        If the address cannot be told, an argument is wrong, or two sources have one target.
    OutputExistsError
        If a file differs from the one at its target, and `overwrite` is false.
    StorageError
        If files cannot be read or written; `PathNotFoundError` and `NoSpaceError` where all failed
        for that.

    Examples
    --------
    >>> upload("images", "/raw", url="http://namenode:9870")             # doctest: +SKIP
    Transferred(files=3000, size=45000000000, same_files=0, same_size=0, seconds=410.2)
    """
    check_threads(threads)
    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    if not given:
        raise ConfigurationError("There is nothing to upload: no source is given.")
    place = parse_path(target)
    address = find_address(place, url=url, kerberos=kerberos)
    stopped = threading.Event()
    with TransferLine("looking at local files", stream=stream) as line:
        connection = Connection(address, stopped=stopped)
        there = connection.status(place.path)
        needs_folder = place.inside or len(given) > 1 or os.path.isdir(given[0])
        if there is not None and not there.is_directory and needs_folder:
            raise OutputExistsError(f"{place.path} is a file on HDFS; choose another target")
        is_folder = place.inside or (there is not None and there.is_directory)
        items = _scanned([os.fspath(each) for each in given], place.path, is_folder, line)
        line.begin("looking at what is on HDFS")
        present = look(connection, items)
        check_names(items)
        check(items, present)
        files = [item for item in items if not item.is_directory]
        # What runs that were cut off have left. A run that lives and writes the same file starts
        # that one again.
        for path in leftovers((item.target for item in files), present):
            connection.delete(path)
        for path in missing_directories(items, present):
            connection.make_directory(path)
        line.begin("sending", files=len(files), size=sum(item.size for item in files))
        sender = Sender(present, overwrite=overwrite, stopped=stopped)
        return Pool(address, threads, line, stopped).run(files, sender.send)


def look(connection: Connection, items: Sequence[Item]) -> dict[str, Present]:
    """Return what there is on HDFS in the directories that items go to, by path.

    Directories are asked from the top, and not below one that is missing.
    """
    wanted = {item.target if item.is_directory else _parent(item.target) for item in items}
    present: dict[str, Present] = {}
    known: set[str] = set()  # directories whose names are in `present`, or that are missing
    for directory in sorted(wanted):
        nowhere = _parent(directory) in known and directory not in present
        known.add(directory)
        if nowhere:
            continue
        try:
            found = connection.list_directory(directory)
        except PathNotFoundError:
            continue
        if [each.path for each in found] != [directory]:  # else it is a file
            present[directory] = Present(is_directory=True)
        for each in found:
            present[each.path] = Present(each.size, each.is_directory, each.opaque)
    return present


class Sender:
    """Sends one file after the other, by many threads.

    Parameters
    ----------
    present : mapping
        What is on HDFS, by path.
    overwrite : bool
        Whether files that differ are replaced.
    stopped : Event
        Ends the reading.
    """

    def __init__(
        self, present: dict[str, Present], *, overwrite: bool, stopped: threading.Event
    ) -> None:
        self._present = present
        self._overwrite = overwrite
        self._stopped = stopped
        self._run = uuid.uuid4().hex[:8]
        # How this HDFS computes checksums; a better guess once it has told one.
        self._layout = ChecksumLayout()

    def send(self, connection: Connection, item: Item, meter: Meter) -> bool:
        """Send a file; return False if it is there already.

        Raises
        ------
        StorageError
            If it cannot be; nothing of it is left on HDFS then, or a note says what.
        """
        there = self._present.get(item.target)
        if there is not None:
            if self._is_same(connection, item, there, meter):
                return False
            meter.reset()
            if not self._overwrite:
                raise OutputExistsError(
                    f"{item.target} is on HDFS already and differs from {item.source}; "
                    "--overwrite, or overwrite=True, replaces it"
                )
        hidden = hidden_name(item.target, self._run)
        try:
            digest = self._write(connection, item, hidden, meter)
            self._verify(connection, item, hidden, digest)
            connection.rename(hidden, item.target, overwrite=self._overwrite)
        except BaseException as error:
            connection.discard(hidden, error)
            raise
        return True

    def _write(self, connection: Connection, item: Item, hidden: str, meter: Meter) -> FileDigest:
        digest = FileDigest(self._layout)

        def content() -> Iterator[bytes]:
            nonlocal digest
            meter.reset()
            digest = FileDigest(self._layout)
            for piece in pieces(item.source, self._stopped):
                digest.update(piece)
                meter.add(len(piece))
                yield piece

        connection.send(hidden, content, item.target)
        return digest

    def _verify(self, connection: Connection, item: Item, hidden: str, digest: FileDigest) -> None:
        """Compare what has arrived with what was read."""
        status = connection.status(hidden)
        size = status.size if status else 0
        if status is None or size != digest.size or digest.size != item.size:
            raise StorageError(
                f"{item.source}: {item.size:,} bytes were found, {digest.size:,} read and "
                f"{size:,} have arrived; if nobody writes to it, try again"
            )
        if status.opaque:
            same = digest_on_hdfs(connection, hidden, digest.layout) == digest.digest()
        else:
            same = self._matches(connection, item, hidden, digest)
        if not same:
            raise StorageError(
                f"{item.source} has another checksum on HDFS than here; if nobody writes to it, "
                "try again"
            )

    def _matches(self, connection: Connection, item: Item, hidden: str, digest: FileDigest) -> bool:
        checksum = connection.checksum(hidden)
        if checksum is None:
            return digest_on_hdfs(connection, hidden, digest.layout) == digest.digest()
        if checksum.layout.fits(digest.layout, item.size):
            return checksum.digest == digest.digest()
        blocks = checksum.layout.block_bytes or self._layout.block_bytes
        self._layout = replace(checksum.layout, block_bytes=blocks)
        return checksum.digest == digest_of(item.source, checksum.layout, self._stopped)

    def _is_same(self, connection: Connection, item: Item, there: Present, meter: Meter) -> bool:
        if there.size != item.size:
            return False
        checksum = None if there.opaque else connection.checksum(item.target)
        layout = checksum.layout if checksum else self._layout
        here = digest_of(item.source, layout, self._stopped, meter)
        if checksum is not None:
            return here == checksum.digest
        return here == digest_on_hdfs(connection, item.target, layout)


def digest_on_hdfs(connection: Connection, path: str, layout: ChecksumLayout) -> bytes:
    """Return the checksum of what is read back from HDFS."""

    def take(content: Iterator[bytes]) -> bytes:
        digest = FileDigest(layout)
        for piece in content:
            digest.update(piece)
        return digest.digest()

    return connection.fetch(path, take)


def _scanned(sources: list[str], target: str, is_folder: bool, line: TransferLine) -> list[Item]:
    items = []
    for source in sources:
        folder = os.path.isdir(source)
        # "." and ".." have no name of their own.
        inside = source.endswith("/") or os.path.basename(source) in (".", "..")
        root = root_of(
            source,
            target,
            is_directory=folder,
            inside=inside,
            may_rename=len(sources) == 1 and not is_folder,
        )
        for item in scan(source, root):
            items.append(item)
            if not item.is_directory:
                line.end_file()
    # Once each, if a source was given twice.
    return [item for item in dict.fromkeys(items) if not is_hidden(item.source)]


def _parent(path: str) -> str:
    return posixpath.dirname(path)

"""What users call: upload, download, list, read, delete."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TextIO

from distkeras_grid.errors import (
    ConfigurationError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.progress import Reporter, surface
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs import local_files, transfers
from distkeras_grid.webhdfs.addresses import HdfsPath, find_address, parse_path
from distkeras_grid.webhdfs.connection import FileStatus, WebHdfsConnection
from distkeras_grid.webhdfs.transfer_plan import (
    TransferItem,
    check,
    check_names,
    is_hidden,
    leftovers,
    transfer_root,
)
from distkeras_grid.webhdfs.transfers import TransferProgress, TransferResult, TransferStatus

THREADS = 4


def upload(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str,
    *,
    url: str | None = None,
    threads: int = THREADS,
    overwrite: bool = False,
    kerberos: bool | Keytab | None = None,
    stream: TextIO | None = None,
) -> TransferResult:
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
    kerberos : bool or Keytab, optional
        By default as ``HADOOP_CONF_DIR`` says.
    stream : text file, optional
        Where the progress line goes; see `distkeras_grid.progress.surface`.

    Returns
    -------
    TransferResult

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
    TransferResult(files=3000, size=45000000000, same_files=0, same_size=0, seconds=410.2)
    """
    check_threads(threads)
    several = [sources] if isinstance(sources, str | os.PathLike) else sources
    paths = [os.fspath(each) for each in several]
    if not paths:
        raise ConfigurationError("There is nothing to upload. Received: no source. Give one.")
    place = parse_path(target)
    address = find_address(place, url=url, kerberos=kerberos)
    stopped = threading.Event()
    with (
        transfer_progress("looking at local files", stream) as progress,
        WebHdfsConnection(address, stopped=stopped) as connection,
    ):
        there = connection.status(place.path)
        needs_folder = place.inside or len(paths) > 1 or os.path.isdir(paths[0])
        if there is not None and not there.is_directory and needs_folder:
            raise OutputExistsError(f"{place.path} is a file on HDFS. Choose another target.")
        items: list[TransferItem] = []
        for path in paths:
            # "." and ".." have no name of their own.
            root = transfer_root(
                path,
                place.path,
                is_directory=os.path.isdir(path),
                inside=path.endswith("/") or os.path.basename(path) in (".", ".."),
                may_rename=not needs_folder and there is None,
            )
            for item in local_files.walk(path, root):
                items.append(item)
                progress.add(files=0 if item.is_directory else 1)
        items = [item for item in dict.fromkeys(items) if not is_hidden(item.source)]
        check_names(items)
        progress.begin(TransferStatus("looking at what is on HDFS"))
        present = transfers.find_existing(connection, {each.directory for each in items})
        files = prepare(items, present, connection.make_directory, connection.delete)
        progress.begin(_begun("sending", files))
        copy = transfers.Transfer(present, overwrite, stopped).upload
        return transfers.transfer_all(address, threads, files, copy, progress, stopped)


def download(
    source: str,
    target: str | os.PathLike[str] = ".",
    *,
    url: str | None = None,
    threads: int = THREADS,
    overwrite: bool = False,
    kerberos: bool | Keytab | None = None,
    stream: TextIO | None = None,
) -> TransferResult:
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
        As in `upload`, and so are result and errors.

    Examples
    --------
    >>> download("/runs/first", "models", url="http://namenode:9870")    # doctest: +SKIP
    TransferResult(files=3, size=1204321, same_files=0, same_size=0, seconds=0.3)
    """
    check_threads(threads)
    place = parse_path(source)
    address = find_address(place, url=url, kerberos=kerberos)
    text = os.fspath(target)
    stopped = threading.Event()
    with (
        transfer_progress("looking at what is on HDFS", stream) as progress,
        WebHdfsConnection(address, stopped=stopped) as connection,
    ):
        there = connection.status(place.path)
        if there is None:
            raise PathNotFoundError(
                f"Cannot read {place.path} on HDFS: it does not exist. Check the path."
            )
        # A new name without a folder lies in this one.
        local = os.path.normpath(text)
        root = transfer_root(
            place.path,
            local if os.path.dirname(local) else os.path.join(".", local),
            is_directory=there.is_directory,
            inside=place.inside or place.path == "/",
            may_rename=not text.endswith("/") and not os.path.isdir(text),
        )
        items = [*transfers.walk(connection, place.path, root)]
        if there.is_directory:
            items.append(TransferItem(place.path, root, is_directory=True))
        progress.begin(TransferStatus("looking at what is here"))
        present = local_files.find_existing({each.directory for each in items})
        files = prepare(items, present, local_files.make_directory, local_files.delete)
        progress.begin(_begun("fetching", files))
        copy = transfers.Transfer(present, overwrite, stopped).download
        return transfers.transfer_all(address, threads, files, copy, progress, stopped)


def list_directory(
    path: str, *, url: str | None = None, kerberos: bool | Keytab | None = None
) -> list[FileStatus]:
    """Return the entries of a directory on HDFS, sorted by name; for a file, its own status.

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
    with _connect(place, url, kerberos) as connection:
        return connection.list_directory(place.path)


def remove(
    paths: Sequence[str],
    *,
    recursive: bool = False,
    url: str | None = None,
    kerberos: bool | Keytab | None = None,
) -> None:
    """Delete files and directories on HDFS for good; there is no trash.

    Every path is looked up before the first is deleted.
    """
    with ExitStack() as opened:
        targets = []
        for place in [parse_path(path) for path in paths]:
            if place.path == "/":
                raise ConfigurationError(
                    "The root of HDFS is never deleted: give paths below it. "
                    f"Received: {list(paths)}. Nothing was deleted."
                )
            connection = opened.enter_context(_connect(place, url, kerberos))
            status = connection.status(place.path)
            if status is None:
                raise PathNotFoundError(
                    f"Cannot delete {place.path} on HDFS: it does not exist. Nothing was deleted."
                )
            if status.is_directory and not recursive:
                raise StorageError(
                    f"Cannot delete {place.path} on HDFS: it is a directory. Give --recursive, or "
                    "recursive=True, to delete all that is in it. Nothing was deleted."
                )
            targets.append((connection, place.path))
        for connection, path in targets:
            connection.delete(path, recursive=recursive)


def check_threads(threads: int) -> None:
    """Raise `ConfigurationError` for a number of threads that makes no sense."""
    if not 1 <= threads <= 64:
        raise ConfigurationError(f"threads must be from 1 to 64. Received: {threads}.")


def prepare(
    items: Sequence[TransferItem],
    present: Mapping[str, FileStatus],
    make_directory: Callable[[str], None],
    delete: Callable[[str], None],
) -> list[TransferItem]:
    """Make the directories, and delete what interrupted runs have left; return the files.

    A run that lives and writes the same file starts that one again.
    """
    check(items, present)
    files = [item for item in items if not item.is_directory]
    for path in leftovers((item.target for item in files), present):
        delete(path)
    for path in sorted({item.directory for item in items} - present.keys()):
        make_directory(path)
    return files


def transfer_progress(phase: str, stream: TextIO | None) -> TransferProgress:
    """Return the reporter of a transfer; on plain lines one that soon ends is silent."""
    return Reporter(TransferStatus(phase), to=surface(stream), at_once=False)


def _begun(phase: str, files: Sequence[TransferItem]) -> TransferStatus:
    total = sum(item.size for item in files)
    return TransferStatus(phase, total_files=len(files), total=total)


def _connect(place: HdfsPath, url: str | None, kerberos: bool | Keytab | None) -> WebHdfsConnection:
    return WebHdfsConnection(find_address(place, url=url, kerberos=kerberos))

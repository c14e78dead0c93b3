"""Upload files and folders to HDFS."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TextIO

from distkeras_grid.errors import ConfigurationError, OutputExistsError
from distkeras_grid.progress import surface
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.addresses import find_address, parse_path
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from distkeras_grid.webhdfs.hdfs_files import HdfsFiles
from distkeras_grid.webhdfs.hidden_names import is_hidden
from distkeras_grid.webhdfs.local_files import LocalFiles
from distkeras_grid.webhdfs.pool import ConnectionPool, TransferResult, check_threads
from distkeras_grid.webhdfs.transfer_plan import TransferItem, check_names, transfer_root
from distkeras_grid.webhdfs.transfer_status import (
    TransferProgress,
    TransferStatus,
    transfer_progress,
)
from distkeras_grid.webhdfs.transfers import (
    THREADS,
    Transfer,
    TransferEndpoints,
    find_existing,
    prepare,
)


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
    TransferResult(files=3000, size=45000000000, same_files=0, same_size=0, seconds=410.2)
    """
    check_threads(threads)
    paths = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    if not paths:
        raise ConfigurationError("There is nothing to upload. Received: no source. Give one.")
    place = parse_path(target)
    address = find_address(place, url=url, kerberos=kerberos)
    stopped = threading.Event()
    with (
        transfer_progress("looking at local files", surface(stream)) as progress,
        WebHdfsConnection(address, stopped=stopped) as asking,
    ):
        hdfs = HdfsFiles(asking)
        there = hdfs.present(place.path)
        needs_folder = place.inside or len(paths) > 1 or os.path.isdir(paths[0])
        if there is not None and not there.is_directory and needs_folder:
            raise OutputExistsError(f"{place.path} is a file on HDFS. Choose another target.")
        is_folder = place.inside or (there is not None and there.is_directory)
        items = _items_of([os.fspath(each) for each in paths], place.path, is_folder, progress)
        check_names(items)
        progress.begin(TransferStatus("looking at what is on HDFS"))
        present = find_existing(hdfs, items)
        files = prepare(hdfs, items, present)
        size = sum(item.size for item in files)
        progress.begin(TransferStatus("sending", total_files=len(files), total_size=size))
        transfer = Transfer(present, overwrite=overwrite, stopped=stopped)
        return ConnectionPool(address, threads, progress, stopped).run(
            files,
            lambda connection, item, meter: transfer.run(
                TransferEndpoints(LocalFiles(), HdfsFiles(connection)), item, meter
            ),
        )


def _items_of(
    sources: list[str], target: str, is_folder: bool, progress: TransferProgress
) -> list[TransferItem]:
    """Return what is to be sent, each item once."""
    items = []
    for source in sources:
        # "." and ".." have no name of their own.
        inside = source.endswith("/") or os.path.basename(source) in (".", "..")
        root = transfer_root(
            source,
            target,
            is_directory=os.path.isdir(source),
            inside=inside,
            may_rename=len(sources) == 1 and not is_folder,
        )
        for item in LocalFiles().walk(source, root):
            items.append(item)
            if not item.is_directory:
                progress.add(files=1)
    return [item for item in dict.fromkeys(items) if not is_hidden(item.source)]

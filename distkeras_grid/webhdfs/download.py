"""Download files and folders from HDFS."""

from __future__ import annotations

import os
import threading
from typing import TextIO

from distkeras_grid.errors import PathNotFoundError
from distkeras_grid.progress import surface
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.addresses import find_address, parse_path
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from distkeras_grid.webhdfs.hdfs_files import HdfsFiles
from distkeras_grid.webhdfs.local_files import LocalFiles
from distkeras_grid.webhdfs.pool import ConnectionPool, TransferResult, check_threads
from distkeras_grid.webhdfs.transfer_plan import transfer_root
from distkeras_grid.webhdfs.transfer_status import TransferStatus, transfer_progress
from distkeras_grid.webhdfs.transfers import (
    THREADS,
    Transfer,
    TransferEndpoints,
    find_existing,
    prepare,
)


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
    TransferResult(files=3, size=1204321, same_files=0, same_size=0, seconds=0.3)
    """
    check_threads(threads)
    place = parse_path(source)
    address = find_address(place, url=url, kerberos=kerberos)
    text = os.fspath(target)
    stopped = threading.Event()
    with (
        transfer_progress("looking at what is on HDFS", surface(stream)) as progress,
        WebHdfsConnection(address, stopped=stopped) as asking,
    ):
        hdfs, here = HdfsFiles(asking), LocalFiles()
        there = hdfs.present(place.path)
        if there is None:
            raise PathNotFoundError(
                f"Cannot read {place.path} on HDFS: it does not exist. Check the path."
            )
        root = transfer_root(
            place.path,
            os.path.normpath(text),
            is_directory=there.is_directory,
            inside=place.inside or place.path == "/",
            may_rename=not text.endswith("/") and not os.path.isdir(text),
        )
        items = list(hdfs.walk(place.path, root))
        progress.begin(TransferStatus("looking at what is here"))
        present = find_existing(here, items)
        files = prepare(here, items, present)
        size = sum(item.size for item in files)
        progress.begin(TransferStatus("fetching", total_files=len(files), total_size=size))
        transfer = Transfer(present, overwrite=overwrite, stopped=stopped)
        return ConnectionPool(address, threads, progress, stopped).run(
            files,
            lambda connection, item, meter: transfer.run(
                TransferEndpoints(HdfsFiles(connection), LocalFiles()), item, meter
            ),
        )

"""Make directories on HDFS, and delete files and directories there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from distkeras_grid.errors import ConfigurationError, PathNotFoundError, StorageError
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.addresses import HdfsPath, find_address, parse_path
from distkeras_grid.webhdfs.connection import WebHdfsConnection


def make_directories(
    paths: Sequence[str], *, url: str | None = None, kerberos: bool | Keytab | None = None
) -> None:
    """Make directories on HDFS, and those above them; one that exists stays as it is."""
    for place in [parse_path(path) for path in paths]:
        with _connect(place, url, kerberos) as connection:
            connection.make_directory(place.path)


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
    places = [parse_path(path) for path in paths]
    with ExitStack() as opened:
        targets = []
        for place in places:
            if not place.path.strip("/"):
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


def _connect(place: HdfsPath, url: str | None, kerberos: bool | Keytab | None) -> WebHdfsConnection:
    return WebHdfsConnection(find_address(place, url=url, kerberos=kerberos))

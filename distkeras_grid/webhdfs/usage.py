"""Measure how much space files and directories take on HDFS."""

from __future__ import annotations

from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.addresses import find_address, parse_path
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from distkeras_grid.webhdfs.responses import Summary


def disk_usage(
    path: str, *, url: str | None = None, kerberos: bool | Keytab | None = None
) -> tuple[Summary, list[Summary]]:
    """Return the space that a path takes, and that of each entry of a directory.

    Examples
    --------
    >>> total, classes = disk_usage("/tiles")                            # doctest: +SKIP
    >>> total.length, total.files                                        # doctest: +SKIP
    (815792128, 24)
    """
    place = parse_path(path)
    with WebHdfsConnection(find_address(place, url=url, kerberos=kerberos)) as connection:
        total = connection.summary(place.path)
        entries = connection.list_directory(place.path)
        if [each.path for each in entries] == [place.path]:
            return total, []
        return total, [connection.summary(each.path) for each in entries]

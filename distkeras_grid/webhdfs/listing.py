"""List a directory on HDFS."""

from __future__ import annotations

from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.addresses import find_address, parse_path
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from distkeras_grid.webhdfs.responses import FileStatus


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
    with WebHdfsConnection(find_address(place, url=url, kerberos=kerberos)) as connection:
        return connection.list_directory(place.path)

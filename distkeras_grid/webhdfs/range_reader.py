"""Read a small file on HDFS."""

from __future__ import annotations

from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs.addresses import find_address, parse_path
from distkeras_grid.webhdfs.connection import TRANSFER_SECONDS, WebHdfsConnection


def read_file(
    path: str,
    *,
    url: str | None = None,
    kerberos: bool | Keytab | None = None,
    seconds: float = TRANSFER_SECONDS,
) -> bytes:
    """Return the content of a file on HDFS.

    `seconds`: no try begins after this time [s].
    """
    place = parse_path(path)
    with WebHdfsConnection(find_address(place, url=url, kerberos=kerberos)) as connection:

        def attempt() -> bytes:
            with connection.pieces(place.path) as pieces:
                return b"".join(pieces)

        return connection.again("read", place.path, attempt, seconds=seconds)

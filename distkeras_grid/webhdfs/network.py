"""Sessions of `requests`, and the meaning of their errors."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from distkeras_grid.tickets import Keytab, ticket_authentication
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.tries import Refused, Trouble, Unreachable

if TYPE_CHECKING:
    import requests


# The read timeout [s], where none is set.
READ_SECONDS = 60.0


def open_session(address: Address) -> requests.Session:
    """Return a session that identifies its user.

    Raises
    ------
    ConfigurationError
        If Kerberos is asked for, and its package is not installed.
    """
    import requests

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _adapter())
    # HttpFS takes no other kind of content; compressed answers would only cost time.
    session.headers["Content-Type"] = "application/octet-stream"
    session.headers["Accept-Encoding"] = "identity"
    if address.kerberos:
        keys = address.kerberos
        session.auth = ticket_authentication(keys if isinstance(keys, Keytab) else None)
    else:
        session.params = {"user.name": address.user}
    return session


def close_session(session: requests.Session) -> None:
    """Close a session with its sockets.

    `requests` would only forget the pools, which stay as long as an error refers to them.
    """
    adapters: Iterable[Any] = session.adapters.values()
    for adapter in adapters:
        pools = adapter.poolmanager.pools
        for key in pools.keys():  # noqa: SIM118 - this container refuses to be iterated
            pools[key].close()
    session.close()


def _adapter() -> requests.adapters.HTTPAdapter:
    """Return an adapter whose answers begin in time.

    The timeouts of `requests` hold for each packet: a server that sends the head of its answer one
    byte a minute would hold a thread for ever.
    """
    from requests.adapters import HTTPAdapter
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Connection(_InTime, HTTPConnection):
        pass

    class SecureConnection(_InTime, HTTPSConnection):
        pass

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    adapter = HTTPAdapter()
    adapter.poolmanager.pool_classes_by_scheme = {"http": Pool, "https": SecurePool}
    return adapter


class _InTime:
    """A connection that is shut when the head of an answer takes twice the read timeout."""

    sock: socket.socket | None
    timeout: float | None

    def getresponse(self) -> Any:
        """Return the answer, its content unread."""
        # urllib3 sets the read timeout before it asks for the answer. A silent server meets that.
        timer = threading.Timer(2 * (self.timeout or READ_SECONDS), self._shut)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()  # type: ignore[misc]
        finally:
            timer.cancel()

    def _shut(self) -> None:
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn errors of `requests` and of the network below it into `TryFailed`."""
    import requests
    import urllib3

    try:
        yield
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        if "SPNEGO" in type(error).__name__:
            raise Refused(url, str(error), None, 401) from error
        causes = list(_causes(error))
        raise Unreachable(url, str(causes[-1]), trouble_of(causes)) from error


def trouble_of(causes: list[BaseException]) -> Trouble:
    """Return the meaning of an error and its causes."""
    import requests

    for kinds, trouble in (
        (socket.gaierror, Trouble.UNKNOWN_HOST),
        (ConnectionRefusedError, Trouble.REFUSED),
        ((ssl.SSLError, requests.exceptions.SSLError), Trouble.TLS),
        ((TimeoutError, requests.Timeout), Trouble.SILENT),
    ):
        if any(isinstance(cause, kinds) for cause in causes):
            return trouble
    return Trouble.BROKEN


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error of the network, what caused it, and so on."""
    import urllib3

    # An error that was being handled before is not a cause.
    kinds = (OSError, HTTPException, urllib3.exceptions.HTTPError)
    cause: BaseException | None = error
    while isinstance(cause, kinds):
        yield cause
        cause = cause.__cause__ or cause.__context__

"""Sessions of `requests`, and the meaning of their errors."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from distkeras_grid.tickets import Keytab, ticket_authentication
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.retry_policy import HttpError, NetworkErrorKind, Unreachable

if TYPE_CHECKING:
    import requests


# The read timeout [s], where none is set.
READ_SECONDS = 60.0


def open_session(address: Address) -> requests.Session:
    """Return a session that identifies its user."""
    import requests

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _adapter(by_proxy=address.by_proxy))
    # HttpFS takes no other kind of content; compressed answers would only cost time.
    session.headers["Content-Type"] = "application/octet-stream"
    session.headers["Accept-Encoding"] = "identity"
    if address.kerberos:
        keys = address.kerberos
        session.auth = ticket_authentication(keys if isinstance(keys, Keytab) else None)
    else:
        session.params = {"user.name": address.user}
    if address.login:
        session.auth = _authorized(address.login, {urlsplit(url).netloc for url in address.urls})
    return session


def _authorized(
    login: tuple[str, str], hosts: set[str]
) -> Callable[[requests.PreparedRequest], requests.PreparedRequest]:
    """Return what adds a login to the requests to some hosts: no DataNode is to see it."""
    from requests.auth import HTTPBasicAuth

    basic = HTTPBasicAuth(*(each.encode() for each in login))

    def add(request: requests.PreparedRequest) -> requests.PreparedRequest:
        return basic(request) if urlsplit(request.url or "").netloc in hosts else request

    return add


def proxy_of(url: str, address: Address) -> str | None:
    """Return host and port of the proxy by which an address is asked; None if there is none.

    The cluster that Hadoop's configuration names, and this machine, are asked directly.
    """
    from requests.utils import get_environ_proxies, select_proxy

    if not address.by_proxy or _is_loopback(url):
        return None
    proxy = select_proxy(url, get_environ_proxies(url))
    return proxy and proxy.rpartition("//")[2].rpartition("@")[2].rstrip("/")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


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


def _adapter(*, by_proxy: bool) -> requests.adapters.HTTPAdapter:
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

    class Adapter(HTTPAdapter):
        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            if not by_proxy or _is_loopback(request.url):
                options["proxies"] = None
            return super().send(request, *arguments, **options)

    adapter = Adapter()
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
    """Turn errors of `requests` and of the network below it into `AttemptFailure`."""
    import requests
    import urllib3

    try:
        yield
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        if "SPNEGO" in type(error).__name__:
            raise HttpError(url, str(error), None, 401) from error
        causes = list(_causes(error))
        raise Unreachable(url, str(causes[-1]), trouble_of(causes)) from error


def trouble_of(causes: list[BaseException]) -> NetworkErrorKind:
    """Return the meaning of an error and its causes."""
    import requests

    for kinds, trouble in (
        (socket.gaierror, NetworkErrorKind.UNKNOWN_HOST),
        (ConnectionRefusedError, NetworkErrorKind.REFUSED),
        ((ssl.SSLError, requests.exceptions.SSLError), NetworkErrorKind.TLS),
        ((TimeoutError, requests.Timeout), NetworkErrorKind.SILENT),
    ):
        if any(isinstance(cause, kinds) for cause in causes):
            return trouble
    return NetworkErrorKind.BROKEN


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error of the network, what caused it, and so on."""
    import urllib3

    # An error that was being handled before is not a cause.
    kinds = (OSError, HTTPException, urllib3.exceptions.HTTPError)
    cause: BaseException | None = error
    while isinstance(cause, kinds):
        yield cause
        cause = cause.__cause__ or cause.__context__

"""Sessions of `requests`, and the meaning of their errors."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from distkeras_grid.tickets import Keytab, ticket_authentication
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.failures import HttpError, Unreachable

if TYPE_CHECKING:
    import requests

PIECE_BYTES = 1 << 20


def direct_session() -> requests.Session:
    """Return a session that uses no proxy and no ``~/.netrc``; compression would cost time."""
    import requests

    session = requests.Session()
    session.trust_env = False
    bundles = (os.environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    session.verify = next(filter(None, bundles), True)
    session.headers["Accept-Encoding"] = "identity"
    return session


def open_session(address: Address) -> requests.Session:
    """Return a session that identifies its user."""
    session = direct_session()
    # The NameNode sends to a DataNode, HttpFS to itself; nothing is sent further.
    session.max_redirects = 3
    # HttpFS takes no other kind of content.
    session.headers["Content-Type"] = "application/octet-stream"
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


def read_all(read1: Callable[[int], bytes], seconds: float) -> bytes:
    """Read all bytes as they come: a server that sends too slowly is given up.

    `seconds`: time limit for all [s]; a `TimeoutError` ends it.
    """
    deadline, content = time.monotonic() + seconds, bytearray()
    while piece := read1(PIECE_BYTES):
        content += piece
        if time.monotonic() > deadline:
            raise TimeoutError(f"it has not come within {seconds} s")
    return bytes(content)


@contextmanager
def translated(asked: Callable[[], str]) -> Iterator[None]:
    """Turn errors of `requests` and of the network below it into `AttemptFailure`.

    `asked`: returns the URL that was asked, where the error does not tell it.
    """
    import requests
    import urllib3

    try:
        yield
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        # After a redirect it was the DataNode's.
        url = getattr(getattr(error, "request", None), "url", None) or asked()
        if isinstance(error, requests.JSONDecodeError):
            raise HttpError(url, error.doc, None) from error
        if "SPNEGO" in type(error).__name__:
            raise HttpError(url, str(error), None, 401) from error
        causes = list(_causes(error))
        raise Unreachable(url, str(causes[-1]), trouble_of(causes)) from error


def trouble_of(causes: list[BaseException]) -> str:
    """Return the meaning of an error and its causes, a key of `UNREACHABLE`."""
    import requests

    kinds: dict[str, type[BaseException] | tuple[type[BaseException], ...]] = {
        "unknown host": socket.gaierror,
        "refused": ConnectionRefusedError,
        "TLS": (ssl.SSLError, requests.exceptions.SSLError),
        "silent": (TimeoutError, requests.Timeout),
    }
    for trouble, kind in kinds.items():
        if any(isinstance(each, kind) for each in causes):
            return trouble
    return "broken"


def root_cause(error: BaseException) -> BaseException:
    """Return what caused an error of `requests` in the end, such as a refused connection."""
    return list(_causes(error))[-1]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error of the network, what caused it, and so on."""
    import urllib3

    # An error that was being handled before is not a cause.
    kinds = (OSError, HTTPException, urllib3.exceptions.HTTPError)
    cause: BaseException | None = error
    while isinstance(cause, kinds):
        yield cause
        cause = cause.__cause__ or cause.__context__

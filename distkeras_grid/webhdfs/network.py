"""Sessions of `requests`, and what their errors mean."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING

from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.tries import Refused, Trouble, Unreachable

if TYPE_CHECKING:
    import requests


def open_session(address: Address) -> requests.Session:
    """Return a session that tells who asks.

    Raises
    ------
    ConfigurationError
        If Kerberos is asked for, and its package is not installed.
    """
    import requests

    session = requests.Session()
    # HttpFS takes no other kind of content; compressed answers would only cost time.
    session.headers["Content-Type"] = "application/octet-stream"
    session.headers["Accept-Encoding"] = "identity"
    if address.kerberos:
        from distkeras_grid.webhdfs.kerberos import ticket_authentication

        session.auth = ticket_authentication()
    else:
        session.params = {"user.name": address.user}
    return session


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
    """Return what an error, with all that caused it, means."""
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

    # An error that was being handled before is no cause.
    kinds = (OSError, HTTPException, urllib3.exceptions.HTTPError)
    cause: BaseException | None = error
    while isinstance(cause, kinds):
        yield cause
        cause = cause.__cause__ or cause.__context__

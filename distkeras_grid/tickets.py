"""Authentication by Kerberos over HTTP (SPNEGO): the extra ``distkeras_grid[kerberos]``."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import ConfigurationError

if TYPE_CHECKING:
    import requests

# A ticket that is over within this time is replaced before it is used [s].
SPARE_SECONDS = 60
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Keytab:
    """Who asks, and the file of their keys: tickets without ``kinit``."""

    principal: str  # Such as ``"ada@GRID.EXAMPLE"``; without a realm, in that of ``krb5.conf``
    file: str  # Path of the keytab

    def check(self) -> None:
        """Refuse a file that is not there."""
        if not os.access(self.file, os.R_OK):
            raise ConfigurationError(
                f"There is no keytab {self.file!r} here, or you may not read it. Check the path."
            )


def keytab_of(principal: str | None, file: str | None) -> Keytab | None:
    """Return what a user has named; None if that is nothing."""
    if (principal is None) != (file is None):
        raise ConfigurationError(
            "--principal and --keytab go together. Received: one of them. Give both or none."
        )
    return None if principal is None or file is None else Keytab(principal, file)


def ticket_advice(keytab: Keytab | None) -> str:
    """Return what to do where a server has not let in whoever asks by ticket, or by a keytab.

    Examples
    --------
    >>> ticket_advice(Keytab("ada@GRID", "ada.keytab"))
    'The keytab ada.keytab gets no ticket for ada@GRID: compare with klist -kt.'
    """
    if keytab is None:
        return (
            "There is no valid Kerberos ticket: get one with kinit, or give --principal and "
            "--keytab."
        )
    return (
        f"The keytab {keytab.file} gets no ticket for {keytab.principal}: compare with klist -kt."
    )


def ticket_authentication(keytab: Keytab | None = None) -> requests.auth.AuthBase:
    """Return the authentication of a `requests` session that sends a ticket when it is asked."""
    try:
        from requests_gssapi import OPTIONAL, HTTPSPNEGOAuth
    except (ImportError, OSError) as error:
        raise ConfigurationError(
            "This cluster wants Kerberos, and the extra for it is not installed here "
            f"({error}): pip install 'distkeras_grid[kerberos]', which needs a C compiler and "
            "Kerberos' headers (Debian: gcc libkrb5-dev)."
        ) from error
    if keytab is None:
        # Of the DataNodes' answers, and of errors, Hadoop signs none.
        ticket: requests.auth.AuthBase = HTTPSPNEGOAuth(mutual_authentication=OPTIONAL)
        return ticket
    keytab.check()
    return _by_keytab(keytab)


def _by_keytab(keytab: Keytab) -> requests.auth.AuthBase:
    import gssapi
    from requests_gssapi import OPTIONAL, HTTPSPNEGOAuth
    from requests_gssapi.exceptions import SPNEGOExchangeError

    # Tickets are kept in this process' memory, each session's under a name of its own.
    cache = f"MEMORY:distkeras_grid-{os.getpid()}-{next(_numbers)}"

    class ByKeytab(HTTPSPNEGOAuth):  # type: ignore[misc]
        ticket: Any = None

        def generate_request_header(self, *arguments: Any, **options: Any) -> Any:
            """Get a ticket where there is none, or it is about to end; send it."""
            try:
                if self.ticket is None or self.ticket.lifetime < SPARE_SECONDS:
                    self.ticket = self.creds = gssapi.Credentials(
                        name=gssapi.Name(keytab.principal, gssapi.NameType.kerberos_principal),
                        usage="initiate",
                        store={"client_keytab": keytab.file, "ccache": cache},
                    )
            except gssapi.exceptions.GSSError as error:
                self.ticket = None
                raise SPNEGOExchangeError(str(error)) from error
            return super().generate_request_header(*arguments, **options)

    authentication: requests.auth.AuthBase = ByKeytab(mutual_authentication=OPTIONAL)
    return authentication

"""Authentication by a Kerberos ticket (SPNEGO): the extra ``distkeras_grid[kerberos]``."""

from __future__ import annotations

from typing import Any

from distkeras_grid.errors import ConfigurationError


def ticket_authentication() -> Any:
    """Return the authentication of a `requests` session that sends a ticket when it is asked.

    Raises
    ------
    ConfigurationError
        If the extra is not installed.
    """
    try:
        from requests_gssapi import OPTIONAL, HTTPSPNEGOAuth
    except ImportError as error:
        raise ConfigurationError(
            "This HDFS wants Kerberos, and the extra for it is not installed here "
            f"({error}): pip install 'distkeras_grid[kerberos]', which needs a C compiler and "
            "Kerberos' headers (Debian: gcc libkrb5-dev)."
        ) from error
    # Of the DataNodes' answers, and of errors, Hadoop signs none.
    return HTTPSPNEGOAuth(mutual_authentication=OPTIONAL)

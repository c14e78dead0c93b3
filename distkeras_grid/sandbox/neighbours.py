"""Who else may log in to this machine, where a sandbox without passwords runs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from pathlib import Path

# Programs that an account has in place of a shell if nobody may log in with it.
_NO_SHELLS = ("nologin", "false", "sync", "halt", "shutdown")


def other_users(accounts: Iterable[pwd.struct_passwd], own: int) -> list[str]:
    """Return the names of others who may log in to this machine.

    Parameters
    ----------
    accounts : iterable of struct_passwd
        All accounts. Those of the system count, too, if they have a shell; root does not, who can
        do all that is warned of anyway.
    own : int
        Number of the account that asks.
    """
    return [
        account.pw_name
        for account in accounts
        if account.pw_uid not in (0, own) and Path(account.pw_shell).name not in _NO_SHELLS
    ]


def warning() -> str:
    """Return what to say where a sandbox without passwords starts.

    Accounts of a directory (LDAP, SSSD) are often not listed, although they may log in. So it is
    said even if nobody else can be named.
    """
    others = ", ".join(other_users(pwd.getpwall(), os.getuid()))
    return (
        "The sandbox has no passwords: whoever can log in to this machine"
        f"{f' ({others})' if others else ''} can read its files and run programs in your name. "
        "kerberos=True (--kerberos) makes one with passwords."
    )

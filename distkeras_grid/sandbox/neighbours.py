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


def warning() -> str | None:
    """Return what to say where a sandbox without passwords starts; None if nobody else is here."""
    others = other_users(pwd.getpwall(), os.getuid())
    if not others:
        return None
    return (
        f"Other users of this machine ({', '.join(others)}) can read the sandbox's files and run "
        "programs in your name: it has no passwords (kerberos=True, --kerberos)."
    )

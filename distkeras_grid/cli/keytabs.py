"""``--principal`` and ``--keytab``: how a command without a ticket of ``kinit`` proves who asks."""

from __future__ import annotations

import argparse

from distkeras_grid.tickets import Keytab, keytab_of


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add both flags."""
    parser.add_argument(
        "--principal", metavar="NAME", help="whose tickets to get with --keytab, without kinit"
    )
    parser.add_argument("--keytab", metavar="FILE", help="keytab of the principal")


def named(flags: argparse.Namespace) -> Keytab | None:
    """Return the keytab that the flags name; None if they name none."""
    keytab = keytab_of(flags.principal, flags.keytab)
    if keytab is not None:
        keytab.check()
    return keytab

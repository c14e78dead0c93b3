"""``distkeras-grid cancel``: stop an application of YARN."""

from __future__ import annotations

import argparse

from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import main_of
from distkeras_grid.cli.parser import Parser, add_keytab_flags, keytab, verb_parser
from distkeras_grid.cli.spinner import spinner

DESCRIPTION = """\
Stop an application of YARN, and wait until it has ended. HADOOP_CONF_DIR says which YARN. If the
application has already ended, nothing happens.
"""


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("cancel", DESCRIPTION)
    parser.add_argument("id", metavar="ID", help="application_..., as printed by submit")
    add_keytab_flags(parser)
    return parser


def cancel(flags: argparse.Namespace) -> None:
    """Stop an application."""
    from distkeras_grid.submission.applications import check_id
    from distkeras_grid.submission.resource_manager import resource_manager

    check_id(flags.id)
    with spinner(f"stopping {flags.id}"), resource_manager(keytab(flags)) as manager:
        application = manager.cancel(flags.id)
    print_result(f"{application.id}  {application.state}  {application.final}")


main = main_of(build_parser, cancel)

"""``distkeras-grid cancel``: stops an application of YARN."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from distkeras_grid.cli import keytabs
from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import ExitCode, run_command
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.spinner import spinner

DESCRIPTION = """\
Stop an application of YARN, and wait until it has ended. HADOOP_CONF_DIR says which YARN. If the
application has already ended, nothing happens.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("cancel", DESCRIPTION)
    parser.add_argument("id", metavar="ID", help="application_..., as printed by submit")
    keytabs.add_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: cancel(flags))


def cancel(flags: argparse.Namespace) -> ExitCode:
    """Stop an application."""
    from distkeras_grid.submission.applications import check_id
    from distkeras_grid.submission.resource_manager import resource_manager

    check_id(flags.id)
    with spinner(f"stopping {flags.id}"), resource_manager(keytabs.named(flags)) as manager:
        application = manager.cancel(flags.id)
    print_result(f"{application.id}  {application.state}  {application.final}")
    return ExitCode.OK

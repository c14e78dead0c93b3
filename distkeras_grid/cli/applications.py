"""``distkeras-grid applications``: what runs, waits and has ended on YARN."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distkeras_grid.cli import keytabs
from distkeras_grid.cli.console import print_result, print_table, report
from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.ls import shown
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.status import format_time
from distkeras_grid.errors import ConfigurationError

if TYPE_CHECKING:
    from distkeras_grid.submission.applications import Application

DESCRIPTION = """\
List the applications that YARN remembers, the newest first: id, state, queue, user, what each uses,
when it was started, and its name. HADOOP_CONF_DIR says which YARN.
"""
EPILOG = """\
examples:
  distkeras-grid applications
  distkeras-grid applications --running --queue nightly
"""
HEAD = ("id", "state", "queue", "user", "containers", "MB", "started", "name")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("applications", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--running", action="store_true", help="only those that wait or run")
    add("--queue", help="only those of a queue, such as nightly or root.nightly")
    add("--user", help="only those of a user")
    keytabs.add_flags(parser)
    add("--limit", type=int, default=20, metavar="N", help="at most N of them (%(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: applications(flags))


def applications(flags: argparse.Namespace) -> None:
    """List as the flags say."""
    from distkeras_grid.submission.resource_manager import resource_manager

    if flags.limit < 1:
        raise ConfigurationError(f"--limit must be at least 1. Received: {flags.limit}.")
    with resource_manager(keytabs.named(flags)) as manager:
        known = manager.applications()
    chosen = filter_applications(known, running=flags.running, queue=flags.queue, user=flags.user)
    print_table([HEAD, *map(row, chosen[: flags.limit])])
    if len(chosen) > flags.limit:
        print_result(f"... and {len(chosen) - flags.limit} older ones (--limit)")
    report(
        applications=[
            {"id": each.id, "state": each.state, "final": each.final, "queue": each.queue}
            for each in chosen[: flags.limit]
        ]
    )


def filter_applications(
    known: Sequence[Application], *, running: bool, queue: str | None, user: str | None
) -> list[Application]:
    """Return those of a list that are asked for."""
    return [
        each
        for each in known
        if not (running and each.ended)
        and (queue is None or f".{each.queue}".endswith(f".{queue}"))
        and (user is None or each.user == user)
    ]


def row(application: Application) -> tuple[str, ...]:
    """Return the cells of an application."""
    return (
        application.id,
        application.final if application.ended else application.state,
        application.queue,
        application.user,
        str(application.containers),
        str(application.memory_mb),
        format_time(application.started),
        shown(application.name),
    )

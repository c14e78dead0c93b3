"""``distkeras-grid status``: the state of an application of YARN, or a list of applications."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from distkeras_grid.cli.console import print_note, print_result, print_table, report
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.ls import printable
from distkeras_grid.cli.parser import Parser, add_keytab_flags, keytab, verb_parser

if TYPE_CHECKING:
    from distkeras_grid.submission.applications import Application

DESCRIPTION = """\
Show the state of an application of YARN; without ID list the newest 20 that submit has started and
YARN remembers. HADOOP_CONF_DIR says which YARN. The exit code is 0 if the application waits, runs
or has succeeded. If it has failed, the exit code is that of its program, or 5 if YARN does not know
it. In client mode YARN sees only that the driver has ended, and says SUCCEEDED even if its program
has failed: the exit code of submit tells that. `distkeras-grid logs` shows what it wrote.
"""
LISTED = 20
HEAD = ("id", "state", "queue", "user", "containers", "MB", "started", "name")


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("status", DESCRIPTION)
    parser.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        help="application_..., as printed by submit (without it: a list of the newest)",
    )
    add_keytab_flags(parser)
    return parser


def status(flags: argparse.Namespace) -> int:
    """Print the state of an application, or the list; return the exit code."""
    from distkeras_grid.cli.submit import verdict
    from distkeras_grid.submission.applications import TAG, check_id
    from distkeras_grid.submission.resource_manager import resource_manager

    if flags.id is not None:
        check_id(flags.id)
    with resource_manager(keytab(flags)) as manager:
        if flags.id is None:
            list_applications(manager.applications(TAG)[:LISTED])
            return ExitCode.OK
        application = manager.application(flags.id)
    report(application=application.id, state=application.state, final=application.final)
    print_result(describe(application))
    if not application.ended or application.final == "SUCCEEDED":
        return ExitCode.OK
    code, why = verdict(application)
    print_note(f"{why}\nwhat it wrote: distkeras-grid logs {application.id}")
    return code


def list_applications(applications: Sequence[Application]) -> None:
    """Print one line for each application."""
    print_table([HEAD, *map(row, applications)])
    report(
        applications=[
            {"id": each.id, "state": each.state, "final": each.final, "queue": each.queue}
            for each in applications
        ]
    )


def row(application: Application) -> tuple[str, ...]:
    """Return the cells of an application."""
    return (
        application.id,
        application.final if application.ended else application.state,
        *(application.queue, application.user),
        *(str(max(0, number)) for number in (application.containers, application.memory_mb)),
        format_time(application.started_ms),
        printable(application.name),
    )


def describe(application: Application) -> str:
    """Return what is known of an application, a line each."""
    ended = f", {application.final}" if application.ended else ""
    lines = {
        "application": f"{application.id} ({application.name})",
        "user": f"{application.user}, queue {application.queue}",
        "state": f"{application.state}{ended}",
        "uses": "" if ended else f"{application.containers} containers, {application.memory_mb} MB",
        "started": format_time(application.started_ms),
        "finished": format_time(application.finished_ms),
        "page": application.tracking_url,
    }
    return "\n".join(f"{name:<12} {value}" for name, value in lines.items() if value)


def format_time(milliseconds: int) -> str:
    """Return a time for a person, in the zone of this machine; nothing for 0."""
    if not milliseconds:
        return ""
    moment = datetime.fromtimestamp(milliseconds / 1000).astimezone()
    return moment.isoformat(sep=" ", timespec="seconds")


main = main_of(build_parser, status)

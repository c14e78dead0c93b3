"""``distkeras-grid status``: how an application of YARN is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from distkeras_grid.cli import keytabs
from distkeras_grid.cli.console import print_note, print_result, report
from distkeras_grid.cli.exit_codes import ExitCode, run_command
from distkeras_grid.cli.parser import verb_parser

if TYPE_CHECKING:
    from distkeras_grid.submission.applications import Application
    from distkeras_grid.tickets import Keytab

DESCRIPTION = """\
Show the state of an application of YARN, as YARN's page tells it. HADOOP_CONF_DIR says which YARN.
The exit code is 0 if the application waits, runs or has succeeded. If it has failed, the exit code
is that of its program, or 5 if YARN does not know it. `distkeras-grid logs` shows what it wrote.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("status", DESCRIPTION)
    parser.add_argument("id", metavar="ID", help="application_..., as printed by submit")
    keytabs.add_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: status(flags))


def status(flags: argparse.Namespace) -> int:
    """Print how an application is; return the exit code."""
    from distkeras_grid.cli.submit import verdict

    application = find_application(flags.id, keytabs.named(flags))
    report(application=application.id, state=application.state, final=application.final)
    print_result(describe(application))
    if not application.ended or application.final == "SUCCEEDED":
        return ExitCode.OK
    code, why = verdict(application)
    print_note(f"{why}\nwhat it wrote: distkeras-grid logs {application.id}")
    return code


def find_application(identifier: str, keytab: Keytab | None) -> Application:
    """Return the state of an application; see `ResourceManager.application`."""
    from distkeras_grid.submission.applications import check_id
    from distkeras_grid.submission.resource_manager import resource_manager

    check_id(identifier)
    with resource_manager(keytab) as manager:
        return manager.application(identifier)


def describe(application: Application) -> str:
    """Return what is known of an application, a line each."""
    ended = f", {application.final}" if application.ended else ""
    lines = {
        "application": f"{application.id} ({application.name})",
        "user": f"{application.user}, queue {application.queue}",
        "state": f"{application.state}{ended}",
        "uses": f"{application.containers} containers, {application.memory_mb} MB",
        "started": format_time(application.started),
        "finished": format_time(application.finished),
        "page": application.tracking_url,
    }
    return "\n".join(f"{name:<12} {value}" for name, value in lines.items() if value)


def format_time(seconds: float) -> str:
    """Return a time for a person, in the zone of this machine; nothing for 0."""
    if not seconds:
        return ""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")

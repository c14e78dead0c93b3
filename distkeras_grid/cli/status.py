"""``distkeras-grid status``: how an application of YARN is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from distkeras_grid.cli.console import tell
from distkeras_grid.cli.exit_codes import ExitCode, guarded
from distkeras_grid.cli.parser import verb_parser

if TYPE_CHECKING:
    from distkeras_grid.submission.yarn import Application

DESCRIPTION = """\
Show the state of an application of YARN. HADOOP_CONF_DIR says which YARN. The exit code is 0 if the
application waits, runs or has succeeded. If it has failed, the exit code is that of its program, or
5 if YARN does not know it.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("status", DESCRIPTION)
    parser.add_argument("id", metavar="ID", help="application_..., as printed by submit")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return guarded(lambda: status(flags))


def status(flags: argparse.Namespace) -> int:
    """Print how an application is; return the exit code."""
    from distkeras_grid.cli.submit import ending
    from distkeras_grid.submission.jvm import hadoop_client
    from distkeras_grid.submission.spark_submit import check_hadoop_settings
    from distkeras_grid.submission.yarn import check_id, yarn_client

    check_id(flags.id)
    check_hadoop_settings()
    with hadoop_client({}) as hadoop, yarn_client(hadoop) as yarn:
        application = yarn.application(flags.id)
        tell(describe(application))
        return ending(application, yarn) if application.ended else ExitCode.OK


def describe(application: Application) -> str:
    """Return what is known of an application, a line each."""
    ended = f", {application.final}" if application.ended else ""
    lines = {
        "application": f"{application.id} ({application.name})",
        "user": f"{application.user}, queue {application.queue}",
        "state": f"{application.state}{ended}",
        "uses": f"{application.containers} containers, {application.memory_mb} MB",
        "started": _time(application.started),
        "finished": _time(application.finished),
        "page": application.tracking_url,
    }
    return "\n".join(f"{name:<12} {value}" for name, value in lines.items() if value)


def _time(seconds: float) -> str:
    if not seconds:
        return ""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")

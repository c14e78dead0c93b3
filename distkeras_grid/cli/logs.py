"""``distkeras-grid logs``: what an application of YARN wrote, without Hadoop's tools."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from distkeras_grid.cli.console import print_note, print_result
from distkeras_grid.cli.exit_codes import main_of
from distkeras_grid.cli.parser import Parser, add_keytab_flags, keytab, verb_parser
from distkeras_grid.cli.spinner import spinner
from distkeras_grid.errors import ConfigurationError, PathNotFoundError

if TYPE_CHECKING:
    from distkeras_grid.submission.container_logs import LogFile, LogSource
    from distkeras_grid.tickets import Keytab

DESCRIPTION = """\
Show what the programs of an application of YARN wrote to stdout and stderr: of its nodes while it
runs, from the collected logs when it has ended. HADOOP_CONF_DIR says which YARN. If it has failed,
the line that tells why comes first.
"""
EPILOG = """\
examples:
  distkeras-grid logs application_1700000000000_0001 --driver
  distkeras-grid logs application_1700000000000_0001 --lines 0 > all.log

In cluster mode the driver's program writes to its container's stdout, and Spark to stderr. In
client mode the driver runs where it was submitted, and its output is not here.
"""
# Of the end of a file so many bytes are read for each line that is shown.
LINE_BYTES = 400


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("logs", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("id", metavar="ID", help="application_..., as printed by submit")
    add("--driver", action="store_true", help="only the application's master")
    add("--lines", type=int, default=100, metavar="N", help="the last N; 0: all (%(default)s)")
    add_keytab_flags(parser)
    return parser


def logs(flags: argparse.Namespace) -> None:
    """Show as the flags say."""
    from distkeras_grid.submission.applications import check_id

    check_id(flags.id)
    if flags.lines < 0:
        raise ConfigurationError(f"--lines must be at least 0. Received: {flags.lines}.")
    with log_source(flags.id, keytab(flags)) as (source, failure):
        with spinner("looking for the logs"):
            files = select(source.files(), driver=flags.driver)
        if not files:
            raise PathNotFoundError(
                f"{flags.id} has written nothing yet. Received: --driver {flags.driver}."
            )
        if failure is not None:
            from distkeras_grid.submission.container_logs import cause_in

            print_result(cause_in(source) or failure or "no log tells why")
        show(source, files, flags.lines)


@contextmanager
def log_source(identifier: str, keytab: Keytab | None) -> Iterator[tuple[LogSource, str | None]]:
    """Open the logs of an application; also yield what YARN says if the application failed."""
    from distkeras_grid.submission.container_logs import CollectedLogs, RunningLogs
    from distkeras_grid.submission.jvm import hadoop_client, kerberos_settings
    from distkeras_grid.submission.resource_manager import resource_manager

    with resource_manager(keytab) as manager:
        application = manager.application(identifier)
        if not application.ended:
            yield RunningLogs(manager, identifier, print_note), None
            return
    failure = None if application.final == "SUCCEEDED" else application.diagnostics.strip()
    with hadoop_client(kerberos_settings(keytab)) as hadoop:
        yield CollectedLogs(hadoop, application), failure


def select(files: Sequence[LogFile], *, driver: bool) -> list[LogFile]:
    """Return the programs' output, or only that of the driver."""
    from distkeras_grid.submission.container_logs import OUTPUTS

    return [
        file
        for file in files
        if file.name in OUTPUTS and file.size and (file.is_drivers or not driver)
    ]


def show(source: LogSource, files: Sequence[LogFile], lines: int) -> None:
    """Write files, or the last lines of each, below a heading."""
    for file in files:
        role = "application master" if file.is_drivers else "executor"
        print_result(
            f"\n== {file.container} ({role}) on {file.node}: {file.name}, {file.size} bytes"
        )
        text = source.read(file, LINE_BYTES * lines or None).rstrip("\n")
        tail = text.split("\n")[-lines:]  # of 0 lines: all
        if text:
            print_result("\n".join(tail))


main = main_of(build_parser, logs)

"""``distkeras-grid logs``: what an application of YARN wrote, without Hadoop's tools."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from distkeras_grid.cli import keytabs
from distkeras_grid.cli.console import print_note, print_result
from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.spinner import spinner
from distkeras_grid.cli.status import find_application
from distkeras_grid.errors import (
    ClusterError,
    ConfigurationError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)

if TYPE_CHECKING:
    from distkeras_grid.submission.applications import Application
    from distkeras_grid.submission.container_logs import LogFile, LogSource
    from distkeras_grid.tickets import Keytab

DESCRIPTION = """\
Show what an application of YARN wrote: of its nodes while it runs, from the collected logs when it
has ended. HADOOP_CONF_DIR says which YARN. If it has failed, the line that tells why comes first.
"""
EPILOG = """\
examples:
  distkeras-grid logs application_1700000000000_0001 --driver
  distkeras-grid logs application_1700000000000_0001 --lines 0 --output logs

In cluster mode the driver's program writes to its container's stdout, and Spark to stderr. In
client mode the driver runs where it was submitted, and its output is not here.
"""
# Of the end of a file so many bytes are read for each line that is shown.
LINE_BYTES = 400


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("logs", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("id", metavar="ID", help="application_..., as printed by submit")
    add("--driver", action="store_true", help="only the application's master")
    add("--container", metavar="ID", help="only a container, by its id or the end of it")
    add(
        "--file",
        action="append",
        metavar="NAME",
        help="only files of this name; may be repeated (stdout and stderr)",
    )
    add("--lines", type=int, default=100, metavar="N", help="the last N; 0: all (%(default)s)")
    add("--list", action="store_true", dest="listed", help="list all files, and show none")
    add("--output", metavar="FOLDER", help="store whole files below a new folder, and show none")
    keytabs.add_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: logs(flags))


def logs(flags: argparse.Namespace) -> None:
    """Show as the flags say."""
    from distkeras_grid.submission.container_logs import cause_in

    if flags.lines < 0:
        raise ConfigurationError(f"--lines must be at least 0. Received: {flags.lines}.")
    if flags.output and Path(flags.output).exists():
        raise OutputExistsError(f"{flags.output} exists. Give a new folder.")
    keytab = keytabs.named(flags)
    application = find_application(flags.id, keytab)
    with source_of(application, keytab) as source:
        with spinner("looking for the logs"):
            files = filter_containers(source.files(), flags)
        if not files:
            raise PathNotFoundError(
                f"{flags.id} has no such log. Received: {_asked(flags)}. Look at all: "
                f"distkeras-grid logs {flags.id} --list."
            )
        if flags.listed:
            for file in files:
                print_result(f"{file.container}  {file.node}  {file.size:>10}  {file.name}")
        elif flags.output:
            store(source, files, Path(flags.output))
        else:
            if application.ended and application.final != "SUCCEEDED":
                print_result(cause_in(source) or application.diagnostics or "no log tells why")
            show(source, files, flags.lines)


@contextmanager
def source_of(application: Application, keytab: Keytab | None) -> Iterator[LogSource]:
    """Open the logs of an application, with tickets of a keytab if there is one."""
    from distkeras_grid.submission.container_logs import CollectedLogs, RunningLogs
    from distkeras_grid.submission.jvm import hadoop_client, kerberos_settings
    from distkeras_grid.submission.resource_manager import resource_manager

    if application.ended:
        with hadoop_client(kerberos_settings(keytab)) as hadoop:
            yield CollectedLogs(hadoop, application)
        return
    with resource_manager(keytab) as manager:
        yield RunningLogs(manager, application.id, print_note)


def filter_containers(files: Sequence[LogFile], flags: argparse.Namespace) -> list[LogFile]:
    """Return the files that the flags ask for; a list has all, and a view no empty ones."""
    from distkeras_grid.submission.container_logs import OUTPUTS

    names = flags.file or (None if flags.listed else OUTPUTS)
    return [
        file
        for file in files
        if (names is None or file.name in names)
        and (not flags.driver or file.is_drivers)
        and (flags.container is None or file.container.endswith(flags.container))
        and (flags.listed or flags.file or file.size)
    ]


def show(source: LogSource, files: Sequence[LogFile], lines: int) -> None:
    """Write files, or the last lines of each, below a heading."""
    from distkeras_grid.submission.container_logs import text_of

    for file in files:
        role = "application master" if file.is_drivers else "executor"
        print_result(
            f"\n== {file.container} ({role}) on {file.node}: {file.name}, {file.size} bytes"
        )
        text = text_of(source, file, LINE_BYTES * lines or None).rstrip("\n")
        tail = text.split("\n")[-lines:]  # of 0 lines: all
        if text:
            print_result("\n".join(tail))


def store(source: LogSource, files: Sequence[LogFile], folder: Path) -> None:
    """Store whole files as ``FOLDER/CONTAINER/NAME``."""
    try:
        for file in files:
            path = folder / _plain(file.container) / _plain(file.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as written:
                for piece in source.read(file):
                    written.write(piece)
    except OSError as error:
        raise StorageError(
            f"The logs cannot be stored in {folder}: {error}. Give another --output, and delete "
            "what is there."
        ) from error
    print_note(f"stored {len(files)} files in {folder}")


def _plain(name: str) -> str:
    """Return a name that YARN has told, unless it leads out of a folder."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ClusterError(f"YARN tells no plain name of a log. Received: {name!r}.")
    return name


def _asked(flags: argparse.Namespace) -> str:
    asked = {
        "--driver": flags.driver,
        "--container": flags.container,
        "--file": flags.file and ", ".join(flags.file),
    }
    words = [name if value is True else f"{name} {value}" for name, value in asked.items() if value]
    return " ".join(words) or "none has written anything yet"

"""``distkeras-grid sandbox``: a real HDFS and YARN on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import ExitCode, run_command
from distkeras_grid.cli.parser import Parser, verb_parser
from distkeras_grid.sandbox.cluster import Sandbox, default_folder

DESCRIPTION = """\
Start and stop a NameNode, DataNodes, a ResourceManager and a NodeManager on this machine, or show
their state. They are the daemons of a real cluster, without Docker and without root. The first
start downloads their jars (64 MB) unless HADOOP_HOME names an installed Hadoop. Data remain in the
folder when the daemons stop; `delete` deletes them, too.

The sandbox has no passwords: whoever can log in to this machine can read its files and run programs
in the name of its user.
"""
EPILOG = """\
examples:
  distkeras-grid sandbox start
  source ~/.local/share/distkeras_grid/sandbox/environment.sh
  distkeras-grid submit tile --input hdfs:///raw --output hdfs:///tiles
  distkeras-grid sandbox stop
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("sandbox", DESCRIPTION, EPILOG)
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="start | stop | restart | repair | status | delete"
    )
    folder = Parser(add_help=False)
    folder.add_argument(
        "--folder",
        type=Path,
        default=default_folder(),
        help="folder of data, configuration and logs (%(default)s)",
    )
    start = verbs.add_parser("start", parents=[folder], help="start the daemons, wait until ready")
    start.add_argument(
        "--datanodes", type=int, default=1, metavar="N", help="number of DataNodes (%(default)s)"
    )
    start.add_argument(
        "--memory",
        type=int,
        metavar="MB",
        help="memory that YARN may give to jobs (half of the machine's)",
    )
    verbs.add_parser("stop", parents=[folder], help="stop the daemons and the running containers")
    verbs.add_parser("restart", parents=[folder], help="stop, and start again as it was")
    verbs.add_parser("repair", parents=[folder], help="start the daemons that have ended")
    verbs.add_parser(
        "delete", parents=[folder], help="stop, and delete data, configuration and logs"
    )
    verbs.add_parser("status", parents=[folder], help="show which daemons run, and their addresses")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    commands = (start, stop, restart, repair, delete, status)
    command = next(each for each in commands if each.__name__ == flags.verb)
    return run_command(lambda: command(flags))


def start(flags: argparse.Namespace) -> ExitCode:
    """Start the sandbox of a folder, and say how to use it."""
    sandbox = Sandbox(
        flags.folder,
        datanodes=flags.datanodes,
        memory_mb=flags.memory,
        say=lambda text: print_result(f"{text} ..."),
    )
    sandbox.start()
    _tell_ready(sandbox)
    return ExitCode.OK


def restart(flags: argparse.Namespace) -> ExitCode:
    """Stop the sandbox of a folder, and start it with the same memory and DataNodes."""
    sandbox = Sandbox(flags.folder, say=lambda text: print_result(f"{text} ..."))
    sandbox.start_anew()
    _tell_ready(sandbox)
    return ExitCode.OK


def _tell_ready(sandbox: Sandbox) -> None:
    print_result(f"ready: a file was written and read, a container ran\n\n{describe(sandbox)}")


def repair(flags: argparse.Namespace) -> ExitCode:
    """Start the daemons of a folder that have ended."""
    sandbox = Sandbox(flags.folder, say=lambda text: print_result(f"{text} ..."))
    started = sandbox.repair()
    print_result(
        f"started: {', '.join(started)}" if started else "nothing is missing: all daemons run"
    )
    return ExitCode.OK


def delete(flags: argparse.Namespace) -> ExitCode:
    """Stop the sandbox of a folder, and delete all that it has written there."""
    sandbox = Sandbox(flags.folder)
    print_result("stopping and deleting ...")
    others = sandbox.delete()
    root = sandbox.layout.root
    names = ", ".join(path.name for path in others)
    print_result(f"deleted; what else is in {root} stays: {names}" if others else f"deleted {root}")
    return ExitCode.OK


def stop(flags: argparse.Namespace) -> ExitCode:
    """Stop the sandbox of a folder."""
    sandbox = Sandbox(flags.folder)
    count = sum(sandbox.status().values())
    print_result(f"stopping {count} daemons (up to half a minute) ...")
    sandbox.stop()
    print_result(f"stopped; {sandbox.layout.root} stays. Delete it: distkeras-grid sandbox delete")
    return ExitCode.OK


def status(flags: argparse.Namespace) -> ExitCode:
    """Tell what of the sandbox runs; the exit code is 0 if all does."""
    sandbox = Sandbox(flags.folder)
    daemons = sandbox.status()
    for name, runs in daemons.items():
        print_result(f"{name:<16} {'runs' if runs else 'has ended'}")
    if daemons and all(daemons.values()):
        print_result(f"\n{describe(sandbox)}")
        return ExitCode.OK
    if not daemons:
        print_result(f"stopped; its data are in {sandbox.layout.root}")
    elif any(daemons.values()):
        print_result("\nStart what has ended: distkeras-grid sandbox repair")
    return ExitCode.CLUSTER


def describe(sandbox: Sandbox) -> str:
    """Return addresses, and the lines that point a shell to the sandbox."""
    lines = [
        f"HDFS  {sandbox.hdfs}   page and WebHDFS {sandbox.webhdfs}",
        f"YARN  --master yarn             page {sandbox.yarn}",
        f"logs  {sandbox.layout.logs}",
        "",
        "In every shell that is to use it:",
        f"  source {sandbox.layout.root}/environment.sh",
    ]
    return "\n".join(lines)

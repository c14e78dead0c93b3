"""``distkeras-grid sandbox``: a real HDFS and YARN on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from distkeras_grid.cli.console import tell
from distkeras_grid.cli.exit_codes import ExitCode, guarded
from distkeras_grid.cli.parser import Parser, verb_parser
from distkeras_grid.sandbox.cluster import Sandbox, default_folder

DESCRIPTION = """\
Start and stop a NameNode, DataNodes, a ResourceManager and a NodeManager on this machine, or show
their state. They are the daemons of a real cluster, without Docker and without root. The first
start downloads their jars (64 MB) unless HADOOP_HOME names an installed Hadoop. Data remain in the
folder when the daemons stop.
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
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="start | stop | status")
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
    verbs.add_parser("status", parents=[folder], help="show which daemons run, and their addresses")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    command = {"start": start, "stop": stop, "status": status}[flags.verb]
    return guarded(lambda: command(flags))


def start(flags: argparse.Namespace) -> ExitCode:
    """Start the sandbox of a folder, and say how to use it."""
    sandbox = Sandbox(
        flags.folder,
        datanodes=flags.datanodes,
        memory_mb=flags.memory,
        say=lambda text: tell(f"{text} ..."),
    )
    sandbox.start()
    tell(f"ready: a file was written and read, a container ran\n\n{describe(sandbox)}")
    return ExitCode.OK


def stop(flags: argparse.Namespace) -> ExitCode:
    """Stop the sandbox of a folder."""
    sandbox = Sandbox(flags.folder)
    count = sum(sandbox.status().values())
    tell(f"stopping {count} daemons (up to half a minute) ...")
    sandbox.stop()
    tell(f"stopped; the data stay in {sandbox.layout.root}")
    return ExitCode.OK


def status(flags: argparse.Namespace) -> ExitCode:
    """Tell what of the sandbox runs; the exit code is 0 if all does."""
    sandbox = Sandbox(flags.folder)
    daemons = sandbox.status()
    for name, runs in daemons.items():
        tell(f"{name:<16} {'runs' if runs else 'has ended'}")
    if daemons and all(daemons.values()):
        tell(f"\n{describe(sandbox)}")
        return ExitCode.OK
    if not daemons:
        tell(f"stopped; its data are in {sandbox.layout.root}")
    return ExitCode.CLUSTER


def describe(sandbox: Sandbox) -> str:
    """Return addresses, and the lines that point a shell to the sandbox."""
    return (
        f"HDFS  {sandbox.hdfs}   page and WebHDFS {sandbox.webhdfs}\n"
        f"YARN  --master yarn             page {sandbox.yarn}\n"
        f"logs  {sandbox.layout.logs}\n\n"
        "In every shell that is to use it:\n"
        f"  source {sandbox.layout.root}/environment.sh"
    )

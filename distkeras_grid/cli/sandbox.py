"""``distkeras-grid sandbox``: a real HDFS and YARN on this machine."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.parser import Parser, verb_parser
from distkeras_grid.sandbox.cluster import Sandbox, default_folder

DESCRIPTION = """\
Start and stop a NameNode, DataNodes, a ResourceManager and a NodeManager on this machine, or show
their state. They are the daemons of a real cluster, without Docker and without root. The first
start downloads their jars (64 MB). Data remain in the folder when the daemons stop.

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


def build_parser() -> Parser:
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
    start = verbs.add_parser(
        "start", parents=[folder], help="start the daemons, or those that have ended"
    )
    start.add_argument(
        "--datanodes", type=int, metavar="N", help="number of DataNodes (as before, or 1)"
    )
    start.add_argument(
        "--memory",
        type=int,
        metavar="MB",
        help="memory that YARN may give to jobs (as before, or half of the machine's)",
    )
    verbs.add_parser("stop", parents=[folder], help="stop the daemons and the running containers")
    verbs.add_parser("status", parents=[folder], help="show which daemons run, and their addresses")
    return parser


def sandbox(flags: argparse.Namespace) -> ExitCode:
    """Start, stop or describe the sandbox of a folder."""
    if flags.verb == "start":
        grid = Sandbox(
            flags.folder,
            datanodes=flags.datanodes,
            memory_mb=flags.memory,
            say=lambda text: print_result(f"{text} ..."),
        )
        grid.start()
        print_result(describe(grid))
        return ExitCode.OK
    grid = Sandbox(flags.folder)
    daemons = grid.status()
    if flags.verb == "status":
        return status(grid, daemons)
    print_result(f"stopping {sum(daemons.values())} daemons (up to half a minute) ...")
    grid.stop()
    print_result(f"stopped; {grid.layout.root} keeps data, configuration and logs")
    return ExitCode.OK


def status(grid: Sandbox, daemons: dict[str, bool]) -> ExitCode:
    """Show what of the sandbox runs; the exit code is 0 if all does."""
    for name, runs in daemons.items():
        print_result(f"{name:<16} {'runs' if runs else 'has ended'}")
    if all(daemons.values()):
        print_result(f"\n{describe(grid)}")
        return ExitCode.OK
    print_result(f"\nits data are in {grid.layout.root}; start it: {grid.command('start')}")
    return ExitCode.CLUSTER


def describe(grid: Sandbox) -> str:
    """Return addresses, and the lines that point a shell to the sandbox."""
    lines = [
        f"HDFS  {grid.hdfs}   page and WebHDFS {grid.webhdfs}",
        f"YARN  --master yarn             page {grid.yarn}",
        f"logs  {grid.layout.logs}",
        "",
        "In every shell that is to use it:",
        f"  source {shlex.quote(str(grid.layout.environment))}",
    ]
    return "\n".join(lines)


main = main_of(build_parser, sandbox)

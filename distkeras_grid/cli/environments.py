"""``distkeras-grid environments``: the environment archives that `submit` has packed."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distkeras_grid.cli import keytabs
from distkeras_grid.cli.console import print_note, print_result, print_table, report
from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.parser import Parser, verb_parser
from distkeras_grid.progress import format_bytes

if TYPE_CHECKING:
    from distkeras_grid.submission.applications import Application
    from distkeras_grid.submission.archives import Archive
    from distkeras_grid.submission.jvm import HadoopClient
    from distkeras_grid.tickets import Keytab

DAYS = 30.0
DESCRIPTION = """\
List the archives of Python environments that submit has packed on this machine and uploaded to the
cluster, with age, size and path, and who needs them; or delete old ones. An archive that is needed
again is packed and uploaded again by the next submit.
"""
EPILOG = """\
examples:
  distkeras-grid environments list
  distkeras-grid environments prune --older-than 60 --plan
  distkeras-grid environments prune --environments hdfs:///shared/environments

An archive is needed by this environment, and by applications that submit has started and that have
not ended. These are never deleted.
"""
HEAD = ("age [days]", "size", "needed by", "path")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("environments", DESCRIPTION, EPILOG)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list | prune")
    where = Parser(add_help=False)
    where.add_argument(
        "--environments",
        metavar="URI",
        help="folder of the archives on the cluster, as submit takes it "
        "(.distkeras_grid/environments in your home directory there)",
    )
    keytabs.add_flags(where)
    verbs.add_parser("list", parents=[where], help="show the archives, the newest first")
    prune = verbs.add_parser("prune", parents=[where], help="delete those that nobody needs")
    prune.add_argument(
        "--older-than",
        type=days,
        default=DAYS,
        metavar="DAYS",
        help="only those that were packed before so many days (%(default)g)",
    )
    prune.add_argument(
        "--plan", action="store_true", help="show what would be deleted, and delete nothing"
    )
    return parser


def days(text: str) -> float:
    """Return a number of days.

    Examples
    --------
    >>> days("0.5")
    0.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days of at least 0")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: environments(flags))


def environments(flags: argparse.Namespace) -> None:
    """List or delete as the flags say."""
    from distkeras_grid.submission.archives import delete, outdated
    from distkeras_grid.submission.jvm import hadoop_client, kerberos_settings

    keytab = keytabs.named(flags)
    with hadoop_client(kerberos_settings(keytab)) as hadoop:
        archives, now = _find(flags.environments, hadoop, keytab), time.time()
        if flags.verb == "prune":
            archives = outdated(archives, flags.older_than, now)
        print_table([HEAD, *(row(each, now) for each in archives)])
        total = sum(each.size for each in archives)
        print_result(f"{len(archives)} archives, {format_bytes(total)}")
        if flags.verb == "prune" and not flags.plan:
            for each in archives:
                delete(each, hadoop.storage)
                print_note(f"deleted {each.uri}")
    report(archives=[{"path": each.uri, "bytes": each.size} for each in archives])


def row(archive: Archive, now: float) -> tuple[str, ...]:
    """Return the cells of an archive; `now` in Unix seconds."""
    from distkeras_grid.submission.archives import DAY

    age = f"{max(0.0, now - archive.modified) / DAY:.1f}"
    return age, format_bytes(archive.size), ", ".join(archive.used_by) or "-", archive.uri


def _find(folder: str | None, hadoop: HadoopClient, keytab: Keytab | None) -> list[Archive]:
    """Return the archives of this machine, then those of the cluster."""
    from distkeras_grid.submission.archive import cache_folder, this_environment
    from distkeras_grid.submission.archives import archives_in
    from distkeras_grid.submission.upload import FOLDER

    home = hadoop.home()
    if folder is None and home is not None:
        folder = f"{home}/{FOLDER}"
    folders = [cache_folder().absolute().as_uri(), *([folder] if folder is not None else [])]
    present, known = this_environment().name, _applications(keytab)
    return [
        archive
        for place in folders
        for archive in archives_in(place, hadoop.storage, present, known)
    ]


def _applications(keytab: Keytab | None) -> list[Application]:
    """Return what YARN knows, if this machine knows of a YARN."""
    from distkeras_grid.submission.resource_manager import resource_manager

    if not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        return []
    with resource_manager(keytab) as manager:
        return manager.applications()

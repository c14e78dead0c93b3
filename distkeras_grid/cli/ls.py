"""``distkeras-grid ls``: what lies on HDFS, from a machine without Java or Hadoop."""

from __future__ import annotations

import argparse
import stat
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.put import add_address_flags, kerberos_of

if TYPE_CHECKING:
    from distkeras_grid.webhdfs.connection import FileStatus

DESCRIPTION = """\
List a directory or a file on HDFS over HTTP (WebHDFS): mode, owner, group, bytes, local time of the
last change, path.
"""
#: For the help texts of all verbs that speak to HDFS.
ADDRESS = """\
The address of WebHDFS is taken from --url, from the variable WEBHDFS_URL, or from the configuration
files in HADOOP_CONF_DIR, in this order."""
EPILOG = f"""\
{ADDRESS}

examples:
  distkeras-grid ls --url http://namenode:9870 /raw
  distkeras-grid ls hdfs:///runs
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("ls", DESCRIPTION, EPILOG)
    parser.add_argument("path", metavar="PATH", help="file or directory on HDFS")
    add_address_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: ls(flags))


def ls(flags: argparse.Namespace) -> None:
    """List as the flags say."""
    from distkeras_grid.webhdfs.operations import list_directory

    for line in format_listing(
        list_directory(flags.path, url=flags.url, kerberos=kerberos_of(flags))
    ):
        print_result(line)


def format_listing(entries: Sequence[FileStatus]) -> list[str]:
    """Return a line for each file or directory, in columns."""
    rows = [
        (
            stat.filemode(
                int(each.permission, 8) | (stat.S_IFDIR if each.is_directory else stat.S_IFREG)
            ),
            each.owner,
            each.group,
            str(each.size),
            f"{datetime.fromtimestamp(each.modified):%Y-%m-%d %H:%M}",
            shown(each.path),
        )
        for each in entries
    ]
    owner, group, size = (max((len(row[at]) for row in rows), default=0) for at in (1, 2, 3))
    return [
        f"{row[0]}  {row[1]:<{owner}}  {row[2]:<{group}}  {row[3]:>{size}}  {row[4]}  {row[5]}"
        for row in rows
    ]


def shown(path: str) -> str:
    """Return a path for a line of a terminal, which must not be changed by a name."""
    return path if path.isprintable() else repr(path)[1:-1]

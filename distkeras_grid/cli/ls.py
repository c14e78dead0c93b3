"""``distkeras-grid ls``: list a directory on HDFS, without Java or Hadoop."""

from __future__ import annotations

import argparse
import stat
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from distkeras_grid.cli.console import print_table
from distkeras_grid.cli.exit_codes import main_of
from distkeras_grid.cli.parser import ADDRESS, Parser, add_hdfs_flags, hdfs_options, verb_parser

if TYPE_CHECKING:
    from distkeras_grid.webhdfs.connection import FileStatus

DESCRIPTION = """\
List a directory or a file on HDFS over HTTP (WebHDFS): mode, owner, group, bytes, local time of the
last change, path.
"""
EPILOG = f"""\
{ADDRESS}

examples:
  distkeras-grid ls --url http://namenode:9870 /raw
  distkeras-grid ls hdfs:///runs
"""


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("ls", DESCRIPTION, EPILOG)
    parser.add_argument("path", metavar="PATH", help="file or directory on HDFS")
    add_hdfs_flags(parser)
    return parser


def ls(flags: argparse.Namespace) -> None:
    """List as the flags say."""
    from distkeras_grid.webhdfs.operations import list_directory

    print_table(rows(list_directory(flags.path, **hdfs_options(flags))))


def rows(entries: Iterable[FileStatus]) -> list[tuple[str, ...]]:
    """Return the cells of each file or directory."""
    return [
        (
            stat.filemode(
                int(each.permission, 8) | (stat.S_IFDIR if each.is_directory else stat.S_IFREG)
            ),
            *(each.owner, each.group, str(each.size)),
            f"{datetime.fromtimestamp(each.modified):%Y-%m-%d %H:%M}",
            printable(each.path),
        )
        for each in entries
    ]


def printable(text: str) -> str:
    """Return a name for a line of a terminal, which a name must not change."""
    return text if text.isprintable() else repr(text)[1:-1]


main = main_of(build_parser, ls)

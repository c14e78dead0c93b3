"""``distkeras-grid du``: the space that a directory takes on HDFS."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.ls import ADDRESS, shown
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.put import add_address_flags, kerberos_of

if TYPE_CHECKING:
    from distkeras_grid.webhdfs.connection import Summary

DESCRIPTION = """\
Show how much space a directory on HDFS takes, over HTTP (WebHDFS): a line for each of its entries
and one for all of it, with the bytes of the files, the bytes on disk with all replicas, the number
of files, and the path.
"""
EPILOG = f"""\
{ADDRESS}

examples:
  distkeras-grid du --url http://namenode:9870 /tiles
  distkeras-grid du hdfs:///tiles
"""
HEAD = ("bytes", "on disk", "files", "path")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("du", DESCRIPTION, EPILOG)
    parser.add_argument("path", metavar="PATH", help="file or directory on HDFS")
    add_address_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: du(flags))


def du(flags: argparse.Namespace) -> None:
    """Measure as the flags say."""
    from distkeras_grid.webhdfs.operations import disk_usage

    total, entries = disk_usage(flags.path, url=flags.url, kerberos=kerberos_of(flags))
    for line in format_usage(total, entries):
        print_result(line)


def format_usage(total: Summary, entries: Sequence[Summary]) -> list[str]:
    """Return a table of the entries and their sum, and a line on the quota if there is one."""
    rows = [HEAD]
    rows += [
        (str(each.length), str(each.space), str(each.files), shown(each.path))
        for each in (*entries, total)
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    lines = [
        "  ".join([*(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    if total.space_quota is not None:
        left = total.space_quota - total.space
        lines.append(f"{left} of {total.space_quota} bytes on disk are left of the quota")
    return lines

"""``distkeras-grid mkdir``: make directories on HDFS, from a machine without Java or Hadoop."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.ls import ADDRESS
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.put import add_address_flags, kerberos_of

DESCRIPTION = """\
Make directories on HDFS over HTTP (WebHDFS), and those above them. A directory that exists stays as
it is.
"""
EPILOG = f"""\
{ADDRESS}

example:
  distkeras-grid mkdir --url http://namenode:9870 /raw/2026-11-23
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("mkdir", DESCRIPTION, EPILOG)
    parser.add_argument("path", metavar="PATH", nargs="+", help="directory on HDFS")
    add_address_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: mkdir(flags))


def mkdir(flags: argparse.Namespace) -> None:
    """Make directories as the flags say."""
    from distkeras_grid.webhdfs.operations import make_directories

    make_directories(flags.path, url=flags.url, kerberos=kerberos_of(flags))

"""``distkeras-grid rm``: delete files on HDFS, from a machine without Java or Hadoop."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.ls import ADDRESS
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.put import add_address_flags, kerberos_of

DESCRIPTION = """\
Delete files on HDFS over HTTP (WebHDFS), and directories with --recursive. What is deleted is gone:
there is no trash. If one of the paths does not exist, or is a directory and --recursive is missing,
nothing is deleted.
"""
EPILOG = f"""\
{ADDRESS}

examples:
  distkeras-grid rm --url http://namenode:9870 /raw/blurred.tif
  distkeras-grid rm --recursive /runs/first /runs/second
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("rm", DESCRIPTION, EPILOG)
    parser.add_argument("path", metavar="PATH", nargs="+", help="file or directory on HDFS")
    parser.add_argument(
        "-r", "--recursive", action="store_true", help="delete directories with all that is in them"
    )
    add_address_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: rm(flags))


def rm(flags: argparse.Namespace) -> None:
    """Delete as the flags say."""
    from distkeras_grid.webhdfs.operations import remove

    remove(flags.path, recursive=flags.recursive, url=flags.url, kerberos=kerberos_of(flags))

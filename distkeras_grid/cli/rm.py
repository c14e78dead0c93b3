"""``distkeras-grid rm``: delete files on HDFS, without Java or Hadoop."""

from __future__ import annotations

import argparse

from distkeras_grid.cli.exit_codes import main_of
from distkeras_grid.cli.parser import ADDRESS, Parser, add_hdfs_flags, hdfs_options, verb_parser

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


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("rm", DESCRIPTION, EPILOG)
    parser.add_argument("path", metavar="PATH", nargs="+", help="file or directory on HDFS")
    parser.add_argument(
        "-r", "--recursive", action="store_true", help="delete directories with all that is in them"
    )
    add_hdfs_flags(parser)
    return parser


def rm(flags: argparse.Namespace) -> None:
    """Delete as the flags say."""
    from distkeras_grid.webhdfs.operations import remove

    remove(flags.path, recursive=flags.recursive, **hdfs_options(flags))


main = main_of(build_parser, rm)

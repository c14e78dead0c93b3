"""``distkeras-grid get``: copy files and folders from HDFS, without Java or Hadoop."""

from __future__ import annotations

import argparse

from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import main_of
from distkeras_grid.cli.parser import ADDRESS, Parser, add_transfer_flags, hdfs_options, verb_parser
from distkeras_grid.cli.put import COPIED, summary

DESCRIPTION = f"""\
Copy a file or a folder from HDFS over HTTP (WebHDFS), without Java and Hadoop on this machine.
{COPIED}"""
EPILOG = f"""\
A folder keeps its name below LOCAL. If SOURCE ends in a slash, the folder's content is copied
directly to LOCAL. {ADDRESS}

examples:
  distkeras-grid get --url http://namenode:9870 /runs/first models        (to models/first)
  distkeras-grid get hdfs:///runs/first/model.keras best.keras
  distkeras-grid get webhdfs://namenode:9870/reports/ reports
"""


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("get", DESCRIPTION, EPILOG)
    parser.add_argument("source", metavar="SOURCE", help="file or folder on HDFS")
    parser.add_argument(
        "local",
        metavar="LOCAL",
        help="local folder, created if it is missing; for a single file also its new name",
    )
    add_transfer_flags(parser)
    return parser


def get(flags: argparse.Namespace) -> None:
    """Copy as the flags say."""
    from distkeras_grid.webhdfs.operations import download

    result = download(flags.source, flags.local, **hdfs_options(flags))
    print_result(summary("fetched", result, f"in {flags.local}"))


main = main_of(build_parser, get)

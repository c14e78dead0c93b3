"""``distkeras-grid put``: copy files and folders to HDFS, without Java or Hadoop."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import main_of
from distkeras_grid.cli.parser import ADDRESS, Parser, add_transfer_flags, hdfs_options, verb_parser

if TYPE_CHECKING:
    from distkeras_grid.webhdfs.transfers import TransferResult

COPIED = """
Each file is written under a hidden name, its checksum is compared with the one that HDFS keeps, and
then it is renamed, so it appears complete or not at all. Files that exist with the same content are
skipped: if the command is interrupted, run it again, and it continues where it ended. If a file
fails, the others are still copied, and the last lines name the file.
"""
DESCRIPTION = f"""\
Copy files and folders to HDFS over HTTP (WebHDFS), without Java and Hadoop on this machine.
{COPIED}"""
EPILOG = f"""\
A folder keeps its name below TARGET. If LOCAL ends in a slash, the folder's content is copied
directly to TARGET. {ADDRESS}

examples:
  distkeras-grid put --url http://namenode:9870 images /raw        (to /raw/images)
  distkeras-grid put images/ webhdfs://namenode:9870/raw           (to /raw)
  export HADOOP_CONF_DIR=/etc/hadoop/conf
  distkeras-grid put --threads 8 monday tuesday hdfs:///raw
"""


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("put", DESCRIPTION, EPILOG)
    parser.add_argument("local", nargs="+", metavar="LOCAL", help="local files and folders")
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="folder on HDFS, created if it is missing; for a single file also its new name",
    )
    add_transfer_flags(parser)
    return parser


def put(flags: argparse.Namespace) -> None:
    """Copy as the flags say."""
    from distkeras_grid.webhdfs.operations import upload

    result = upload(flags.local, flags.target, **hdfs_options(flags))
    print_result(summary("sent", result, f"in {flags.target}"))


def summary(verb: str, result: TransferResult, where: str) -> str:
    """Return the last line of a transfer."""
    from distkeras_grid.progress import format_bytes

    text = f"{verb} {count(result.files)}"
    if result.files:
        rate = result.size / max(result.seconds, 0.001)
        text += f", {format_bytes(result.size)} in {result.seconds:.1f} s, {format_bytes(rate)}/s"
    if result.same_files:
        same = f"{count(result.same_files)}, {format_bytes(result.same_size)}"
        text += f"; {same}, were {where} already"
    return text


def count(files: int) -> str:
    """Return a number of files in words.

    Examples
    --------
    >>> count(1), count(3000)
    ('1 file', '3,000 files')
    """
    return f"{files:,} file{'s' * (files != 1)}"


main = main_of(build_parser, put)

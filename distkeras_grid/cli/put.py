"""``distkeras-grid put``: files and folders to HDFS, from a machine without Java or Hadoop."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distkeras_grid.cli import keytabs
from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.parser import verb_parser

if TYPE_CHECKING:
    from distkeras_grid.tickets import Keytab
    from distkeras_grid.webhdfs.transfers import TransferResult

DESCRIPTION = """\
Copy files and folders to HDFS over HTTP (WebHDFS), without Java and Hadoop on this machine.

Each file is written under a hidden name, its checksum is compared with the one that HDFS keeps, and
then it is renamed, so it appears complete or not at all. Files that exist with the same content are
skipped: if the command is interrupted, run it again, and it continues where it ended. If a file
fails, the others are still copied, and the last lines name the file.
"""
EPILOG = """\
A folder keeps its name below TARGET. If LOCAL ends in a slash, the folder's content is copied
directly to TARGET. The address of WebHDFS is taken from --url, from the variable WEBHDFS_URL, or
from the configuration files in HADOOP_CONF_DIR, in this order.

examples:
  distkeras-grid put --url http://namenode:9870 images /raw        (to /raw/images)
  distkeras-grid put images/ webhdfs://namenode:9870/raw           (to /raw)
  export HADOOP_CONF_DIR=/etc/hadoop/conf
  distkeras-grid put --threads 8 monday tuesday hdfs:///raw
"""


def build_parser() -> argparse.ArgumentParser:
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


def add_address_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how HDFS is reached."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="http://NAMENODE:9870; two NameNodes with ';' between them if HDFS is highly "
        "available (WEBHDFS_URL, or from HADOOP_CONF_DIR)",
    )
    parser.add_argument(
        "--kerberos",
        action="store_true",
        default=None,
        help="authenticate with the ticket of kinit (from HADOOP_CONF_DIR)",
    )
    keytabs.add_flags(parser)


def kerberos_of(flags: argparse.Namespace) -> bool | Keytab | None:
    """Return how the user is authenticated; None if the cluster's configuration says it."""
    kerberos: bool | None = flags.kerberos
    return keytabs.named(flags) or kerberos


def add_transfer_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of both directions."""
    add_address_flags(parser)
    parser.add_argument(
        "--threads", type=int, default=4, metavar="N", help="files copied at once, 1 to 64 (4)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace existing files that differ"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: put(flags))


def put(flags: argparse.Namespace) -> None:
    """Copy as the flags say."""
    from distkeras_grid.webhdfs.operations import upload

    done = upload(
        flags.local,
        flags.target,
        url=flags.url,
        threads=flags.threads,
        overwrite=flags.overwrite,
        kerberos=kerberos_of(flags),
    )
    print_result(summary("sent", done, f"in {flags.target}"))


def summary(verb: str, done: TransferResult, where: str) -> str:
    """Return the last line of a transfer."""
    from distkeras_grid.progress import format_bytes

    text = f"{verb} {count(done.files)}"
    if done.files:
        rate = done.size / max(done.seconds, 0.001)
        text += f", {format_bytes(done.size)} in {done.seconds:.1f} s, {format_bytes(rate)}/s"
    if done.same_files:
        text += f"; {count(done.same_files)}, {format_bytes(done.same_size)}, were {where} already"
    return text


def count(files: int) -> str:
    """Return a number of files in words.

    Examples
    --------
    >>> count(1), count(3000)
    ('1 file', '3,000 files')
    """
    return f"{files:,} file{'s' * (files != 1)}"

"""``distkeras-grid get``: files and folders from HDFS, to a machine without Java or Hadoop."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import run_command
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.put import add_transfer_flags, kerberos_of, summary

DESCRIPTION = """\
Copy a file or a folder from HDFS over HTTP (WebHDFS), without Java and Hadoop on this machine.

Each file is written under a hidden name, its checksum is compared with the one that HDFS keeps, and
then it is renamed, so it appears complete or not at all. Files that exist with the same content are
skipped: if the command is interrupted, run it again, and it continues where it ended. If a file
fails, the others are still copied, and the last lines name the file.
"""
EPILOG = """\
A folder keeps its name below LOCAL. If SOURCE ends in a slash, the folder's content is copied
directly to LOCAL. The address of WebHDFS is taken from --url, from the variable WEBHDFS_URL, or
from the configuration files in HADOOP_CONF_DIR, in this order.

examples:
  distkeras-grid get --url http://namenode:9870 /runs/first models        (to models/first)
  distkeras-grid get hdfs:///runs/first/model.keras best.keras
  distkeras-grid get webhdfs://namenode:9870/reports/ reports
"""


def build_parser() -> argparse.ArgumentParser:
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: get(flags))


def get(flags: argparse.Namespace) -> None:
    """Copy as the flags say."""
    from distkeras_grid.webhdfs.operations import download

    done = download(
        flags.source,
        flags.local,
        url=flags.url,
        threads=flags.threads,
        overwrite=flags.overwrite,
        kerberos=kerberos_of(flags),
    )
    print_result(summary("fetched", done, f"in {flags.local}"))

"""``distkeras-grid get``: files and folders from HDFS, to a machine without Java or Hadoop."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from distkeras_grid.cli.console import tell
from distkeras_grid.cli.exit_codes import exit_codes_help, guarded
from distkeras_grid.cli.put import add_transfer_flags, summary

DESCRIPTION = """\
Copy a file or a folder from HDFS over HTTP (WebHDFS): no Java and no Hadoop is needed here.

Each file is written under a hidden name, compared by the checksum that HDFS keeps, and renamed: it
appears whole or not at all. Files that are here with the same content are left out, so the same
command goes on where one that was cut off has ended. A file that fails does not keep the others
from being copied; the end says which did.
"""
EPILOG = """\
A folder keeps its name below LOCAL; what lies in it goes straight to LOCAL if SOURCE ends in a
slash. WebHDFS is looked for at --url, at WEBHDFS_URL, and where the configuration files in
HADOOP_CONF_DIR say.

examples:
  distkeras-grid get --url http://namenode:9870 /runs/first models        (to models/first)
  distkeras-grid get hdfs:///runs/first/model.keras best.keras
  distkeras-grid get webhdfs://namenode:9870/reports/ reports
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="distkeras-grid get",
        description=DESCRIPTION,
        epilog=EPILOG + "\n" + exit_codes_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="file or folder on HDFS")
    parser.add_argument(
        "local",
        metavar="LOCAL",
        help="folder, made where it is missing; for a single file also its new name",
    )
    add_transfer_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return guarded(lambda: get(flags))


def get(flags: argparse.Namespace) -> None:
    """Copy as the flags say."""
    from distkeras_grid.webhdfs.download import download

    done = download(
        flags.source,
        flags.local,
        url=flags.url,
        threads=flags.threads,
        overwrite=flags.overwrite,
        kerberos=flags.kerberos,
    )
    tell(summary("fetched", done, f"in {flags.local}"))

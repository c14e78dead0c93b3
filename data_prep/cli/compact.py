"""``distkeras-grid compact``: merges many small shards of a data set of tiles into a few."""

from __future__ import annotations

import argparse

from data_prep.dataset.compaction import compact_tiles
from distkeras_grid.cli import preflight
from distkeras_grid.cli.console import output, print_result, report
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.parser import add_master_flag, verb_parser
from distkeras_grid.cli.spinner import start_spark

DESCRIPTION = """\
Copy the small shards of many nights into fewer ones, with files of 128 to 256 MB. The rows are the
same, and so is the hash of the version. If the command is killed, run it again. Former versions
that need the small shards stay for a week, or as tile --keep-versions says; then they are deleted.
"""
EXAMPLES = """\
examples:
  distkeras-grid compact --data hdfs:///tiles
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("compact", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="data set of tiles")
    add_master_flag(parser)
    return parser


def check_early(flags: argparse.Namespace, place: preflight.SubmittedDriver | None) -> None:
    """Refuse what can be known before Spark starts."""
    preflight.check_input(flags.data, "--data", place)


def run(flags: argparse.Namespace) -> ExitCode:
    """Compact as the flags say."""
    session = start_spark("distkeras-grid compact", flags.master)
    content = compact_tiles(flags.data, spark=session, say=output())
    shards = len(content["shards"])
    print_result(f"{content['tiles']:,} tiles are in {shards:,} shards of {flags.data}")
    report(data=flags.data, tiles=content["tiles"], shards=shards, hash=content.get("hash"))
    return ExitCode.OK


main = main_of(build_parser, run)

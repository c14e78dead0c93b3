"""``distkeras-grid versions``: lists the readable versions of a data set of tiles."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from data_prep.dataset import croissant
from data_prep.dataset.commit import require_head
from data_prep.dataset.convert import convert_layout
from data_prep.dataset.manifest import DataSet
from distkeras_grid.cli.console import output, print_result, report
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.parser import add_master_flag, verb_parser
from distkeras_grid.cli.spinner import start_spark
from distkeras_grid.spark.dataframes import read_manifest
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DESCRIPTION = """\
List the versions of a data set of tiles that can be read, oldest first. Each night, and each change
of labels, splits or folds, makes a version. The hash says which rows it has: it is the same for all
who tile the same images in the same way, so a paper can cite it.
"""
EXAMPLES = """\
examples:
  distkeras-grid versions --data hdfs:///tiles
  train on what was there at version 41, or under a hash:
    distkeras-grid train --data hdfs:///tiles --data-version 41 --split train \\
        --features image --model my_models:net --output runs/again
  the description of a version that a paper cites, in the Croissant format:
    distkeras-grid versions --data hdfs:///tiles --card 41 > version_41.json
  keep what was replaced for 30 days and not for 7:
    distkeras-grid tile --update --keep-versions 30d --input hdfs:///raw --output hdfs:///tiles
"""


def list_versions(data: str, *, spark: SparkSession | None = None) -> list[dict[str, Any]]:
    """Return the versions of a data set of tiles that can be read, oldest first."""
    storage = Storage(spark or build_session("distkeras_grid versions"))
    head = require_head(storage, data.rstrip("/")).manifest
    names = ("number", "hash", "created", "replaced", "tiles")
    present = {
        "number": head.last_update,
        "hash": head.hash,
        "created": head.created,
        "replaced": None,
        "tiles": head.tiles,
    }
    return [*({name: getattr(each, name) for name in names} for each in head.history), present]


def card_of(data: str, version: int | str, *, spark: SparkSession | None = None) -> str:
    """Describe a version of a data set of tiles in the Croissant format."""
    storage = Storage(spark or build_session("distkeras_grid versions"))
    root = data.rstrip("/")
    require_head(storage, root)
    known = DataSet.from_text(read_manifest(storage, root, version) or b"", root)
    uri = f"{root}/{croissant.FILE}"
    former = storage.read_text(uri) if storage.exists(uri) else None
    return croissant.describe(known.content, storage.resolve(root).rpartition("/")[2], former)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("versions", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="data set of tiles")
    add(
        "--card",
        metavar="VERSION",
        help="print the description of this version, by number or hash, in the Croissant format",
    )
    add(
        "--convert",
        action="store_true",
        help="convert a data set that an earlier release made (it holds _dataset.json); no tile is "
        "written again. No other command may work on it meanwhile",
    )
    add_master_flag(parser)
    return parser


def run(flags: argparse.Namespace) -> ExitCode:
    """List versions, describe one, or convert a data set of an earlier release."""
    session = start_spark("distkeras-grid versions", flags.master)
    if flags.convert:
        number = convert_layout(Storage(session), flags.data, output())
        print_result(f"{flags.data} is converted; its present version is {number}")
        report(data=flags.data, version=number)
        return ExitCode.OK
    if flags.card is not None:
        print_result(card_of(flags.data, flags.card, spark=session).rstrip())
        report(data=flags.data, version=flags.card)
        return ExitCode.OK
    versions = list_versions(flags.data, spark=session)
    for each in versions:
        until = f"to {each['replaced']}" if each["replaced"] else "(present)"
        print_result(
            f"version {each['number']}: {each['created']} {until}, {each['tiles']:,} tiles"
        )
        print_result(f"  {each['hash']}")
    report(data=flags.data, versions=versions)
    return ExitCode.OK


main = main_of(build_parser, run)

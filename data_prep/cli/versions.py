"""``distkeras-grid versions``: lists the readable versions of a data set of tiles."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from data_prep.dataset import croissant
from data_prep.dataset.history import version_hash
from distkeras_grid.cli.console import print_result, report
from distkeras_grid.cli.exit_codes import ExitCode, run_command
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.spinner import start_spark
from distkeras_grid.errors import PathNotFoundError, SchemaError
from distkeras_grid.spark.dataframes import MANIFEST, read_manifest
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage
from distkeras_grid.spark.versions import read_history

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
  keep what was replaced for 30 days:
    distkeras-grid tile --update --keep-versions 30d --input hdfs:///raw --output hdfs:///tiles
"""


def list_versions(data: str, *, spark: SparkSession | None = None) -> list[dict[str, Any]]:
    """Return the versions of a data set of tiles that can be read, oldest first."""
    import msgspec

    storage = Storage(spark or build_session("distkeras_grid versions"))
    root = data.rstrip("/")
    text = read_manifest(storage, root)
    if text is None:
        raise PathNotFoundError(f"There is no data set of tiles in {data}. Check the path.")
    history = read_history(text, f"{root}/{MANIFEST}")
    content = msgspec.json.decode(text)
    names = ("number", "hash", "created", "replaced", "tiles")
    try:
        present = {
            "number": history.last_update,
            "hash": history.hash or version_hash(content),
            "created": content["created"],
            "replaced": None,
            "tiles": content["tiles"],
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaError(f"{root}/{MANIFEST} does not describe tiles: {error!r}.") from error
    return [*({name: getattr(each, name) for name in names} for each in history.history), present]


def card_of(data: str, version: int | str, *, spark: SparkSession | None = None) -> str:
    """Describe a version of a data set of tiles in the Croissant format."""
    import msgspec

    storage = Storage(spark or build_session("distkeras_grid versions"))
    root = data.rstrip("/")
    if not storage.exists(f"{root}/{MANIFEST}"):
        raise PathNotFoundError(f"There is no data set of tiles in {data}. Check the path.")
    content = msgspec.json.decode(read_manifest(storage, root, version) or "")
    try:
        # Manifests of earlier releases have no hash.
        manifest = {"hash": version_hash(content), **content}
        uri = f"{root}/{croissant.FILE}"
        former = storage.read_text(uri) if storage.exists(uri) else None
        return croissant.describe(manifest, storage.resolve(root).rpartition("/")[2], former)
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaError(
            f"Version {version} of {data} does not describe tiles: {error!r}."
        ) from error


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
    add("--master", help="Spark master of a session started here (default: local[*,4])")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: run(flags))


def run(flags: argparse.Namespace) -> ExitCode:
    """List versions, or describe one."""
    session = start_spark("distkeras-grid versions", flags.master)
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

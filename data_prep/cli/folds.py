"""``distkeras-grid folds``: folds of a data set of tiles, for cross-validation."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from data_prep.dataset.commit import require_head
from data_prep.dataset.edit import publish_tables
from data_prep.dataset.label_edits import divide_into_folds
from distkeras_grid.cli.console import output, print_result, report
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.parser import add_master_flag, verb_parser
from distkeras_grid.cli.spinner import start_spark
from distkeras_grid.dataset.folds import Folds
from distkeras_grid.progress import Say
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DESCRIPTION = """\
Divide the images of a data set of tiles into folds. No tile is read or written: the folds are a
table in the manifest, and a new version of the data set. Images that stay together in a split stay
together in a fold, classes are divided evenly, and the split test takes no part.

Run again after tile --update, the command gives folds to the new images and changes no other.
"""
EXAMPLES = """\
examples:
  five folds, and a training on the first:
    distkeras-grid folds --data tiles --by 5
    distkeras-grid train --data tiles --fold fold_0 --split train \\
        --validation-split validation --features image --model my_models:net --output runs/fold_0
  one fold for each specimen (tile --group):
    distkeras-grid folds --data tiles --by group --name specimen
"""


def make_folds(
    data: str,
    by: str,
    *,
    name: str = "fold",
    seed: int = 0,
    overwrite: bool = False,
    allow_empty: bool = False,
    spark: SparkSession | None = None,
    say: Say = lambda _: None,
) -> Folds:
    """Divide the images of a data set of tiles into folds, or only those that have no fold yet."""
    storage = Storage(spark or build_session("distkeras_grid folds"))
    root = data.rstrip("/")
    head = require_head(storage, root)
    known = head.manifest.folds
    former = None if overwrite else known.get(name)
    folds = divide_into_folds(head, by, seed, name, former=former, allow_empty=allow_empty)
    changed = None
    if folds != known.get(name):
        every = sorted({**known, name: folds}.items())
        changed = {**head.content, "folds": {each: division.to_json() for each, division in every}}
    publish_tables(storage, root, head, changed, say)
    return folds


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("folds", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="data set of tiles")
    add("--by", required=True, metavar="K", help="number of folds, or group: one for each group")
    add("--name", default="fold", help="begins the names of the folds (fold)")
    add("--seed", type=int, default=0, help="of the division (0)")
    add("--overwrite", action="store_true", help="divide anew the images that have folds")
    add(
        "--allow-empty",
        action="store_true",
        help="accept that a fold has no tile of some class; refused otherwise",
    )
    add_master_flag(parser)
    return parser


def run(flags: argparse.Namespace) -> ExitCode:
    """Make folds as the flags say."""
    session = start_spark("distkeras-grid folds", flags.master)
    folds = make_folds(
        *(flags.data, flags.by),
        name=flags.name,
        seed=flags.seed,
        overwrite=flags.overwrite,
        allow_empty=flags.allow_empty,
        spark=session,
        say=output(),
    )
    images = Counter(folds.held_out.values())
    for column in folds.columns:
        print_result(f"  {column}: holds out {images[column]:,} images")
    report(data=flags.data, folds=list(folds.columns), images=len(folds.held_out))
    return ExitCode.OK


main = main_of(build_parser, run)

"""``distkeras-grid revise``: changes labels, groups, splits and exclusions, without cutting."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from data_prep.dataset.commit import require_head
from data_prep.dataset.edit import publish_tables
from data_prep.dataset.label_edits import (
    EditResult,
    annotate_tiled,
    exclude,
    include,
    parse_list,
    resplit,
    revised_content,
)
from data_prep.dataset.manifest import DataSet
from data_prep.dataset.split_coverage import emptied_cells
from data_prep.splits.labels import parse_table
from distkeras_grid.cli.console import output, print_result, report
from distkeras_grid.cli.exit_codes import ExitCode, main_of
from distkeras_grid.cli.parser import add_master_flag, verb_parser
from distkeras_grid.cli.spinner import start_spark
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.progress import Say
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DESCRIPTION = """\
Change labels, groups, splits and exclusions of a data set of tiles. No image is read and no tile is
written: the change is a new version of the tables in the manifest, and the former version can
still be read. Labels and groups that are given here stand; later nights do not change them back.
"""
EXAMPLES = """\
examples:
  other labels for some images (columns file and label, optionally group and split):
    distkeras-grid revise --data tiles --labels corrected.csv
  set blurred images aside (columns file and, optionally, reason), and take them back:
    distkeras-grid revise --data tiles --exclude blurred.csv
    distkeras-grid revise --data tiles --include blurred.csv
  divide all images anew; what models were tested on before may be trained on then:
    distkeras-grid revise --data tiles --split 0.7:0.15:0.15 --seed 3
"""


def revise_tiles(
    data: str,
    *,
    labels: str | None = None,
    excluded: str | None = None,
    included: str | None = None,
    split: str | None = None,
    seed: int = 0,
    new_classes: bool = False,
    allow_empty: bool = False,
    spark: SparkSession | None = None,
    say: Say = lambda _: None,
) -> tuple[dict[str, int], dict[str, Any]]:
    """Change the tables of a data set of tiles; one kind of change at a time."""
    edits = [each for each in (labels, excluded, included, split) if each is not None]
    if len(edits) != 1:
        raise ConfigurationError(
            "Give one of --labels, --exclude, --include and --split. "
            f"Received: {', '.join(edits) or 'none'}."
        )
    storage = Storage(spark or build_session("distkeras_grid revise"))
    path = edits[0]
    settings: dict[str, Any] = {} if split is None else {"split": split, "seed": seed}
    edit: Callable[[DataSet], EditResult]
    if labels is not None:
        table = parse_table(storage.read_text(path), path)
        edit = partial(annotate_tiled, table=table, path=path, new_classes=new_classes)
    elif split is not None:
        edit = partial(resplit, shares=split, seed=seed, allow_empty=allow_empty)
    else:
        reasons = parse_list(storage.read_text(path), path)
        if excluded is not None:
            edit = partial(exclude, reasons=reasons, path=path)
        else:
            edit = partial(include, names=reasons, path=path)
    root = data.rstrip("/")
    head = require_head(storage, root)
    result = edit(head)
    former = {name: head.content["settings"].get(name) for name in settings}
    is_changed = result or former != settings
    changed = revised_content(head, result.entries, **settings) if is_changed else None
    manifest = publish_tables(storage, root, head, changed, say)
    for label, name in emptied_cells(head.content["counts"], manifest["counts"]):
        say(f"class {label} has no tile in {name} any more")
    return result.counts, manifest


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("revise", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="data set of tiles")
    add("--labels", metavar="FILE.csv", help="columns file and label, optionally group and split")
    add("--exclude", metavar="FILE.csv", help="columns file and, optionally, reason")
    add("--include", metavar="FILE.csv", help="column file: take back what was excluded")
    add("--split", metavar="SHARES", help="divide all images anew, as tile --split does")
    add("--seed", type=int, default=0, help="of --split (0)")
    add(
        "--new-classes",
        action="store_true",
        help="take classes that the data set does not have; they get the next numbers",
    )
    add(
        "--allow-empty",
        action="store_true",
        help="accept a split without tiles of some class; refused otherwise",
    )
    add_master_flag(parser)
    return parser


def run(flags: argparse.Namespace) -> ExitCode:
    """Revise as the flags say."""
    session = start_spark("distkeras-grid revise", flags.master)
    counts, manifest = revise_tiles(
        flags.data,
        labels=flags.labels,
        excluded=flags.exclude,
        included=flags.include,
        split=flags.split,
        seed=flags.seed,
        new_classes=flags.new_classes,
        allow_empty=flags.allow_empty,
        spark=session,
        say=output(),
    )
    number, digest = manifest["last_update"], manifest.get("hash")
    print_result("images: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
    print_result(f"version {number} of {flags.data}: {digest}")
    report(data=flags.data, version=number, hash=digest, **counts)
    return ExitCode.OK


main = main_of(build_parser, run)

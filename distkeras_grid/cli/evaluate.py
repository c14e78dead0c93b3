"""``distkeras-grid evaluate``: predictions against labels, by class."""

from __future__ import annotations

import argparse
import json

from distkeras_grid.cli import preflight
from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import main_of
from distkeras_grid.cli.parser import Parser, add_master_flag, columns, verb_parser
from distkeras_grid.cli.run_metadata import recorded_predictions
from distkeras_grid.cli.spinner import spinner, start_spark
from distkeras_grid.errors import OutputExistsError

DESCRIPTION = """\
Compare a column of predictions with a column of labels. Prints accuracy, precision and recall by
class, and the confusion matrix. Where the data set tells the source image and the group of a row,
there are also figures by image and by group: all tiles of an image together name its class. In
brackets are 95 % intervals from how whole groups, or images, differ, because tiles of one image are
alike. Predictions with NaN are an error, because they name no class.
"""
EPILOG = """\
examples:
  distkeras-grid evaluate --data predictions
  distkeras-grid evaluate --data predictions --by source,specimen
  distkeras-grid submit evaluate --data hdfs:///predictions --output hdfs:///figures.json
"""


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("evaluate", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="Parquet data set with both columns")
    add(
        "--prediction",
        metavar="COLUMN",
        help="column of predictions (the one that predict wrote; otherwise prediction)",
    )
    add(
        "--label",
        metavar="COLUMN",
        help="column of labels (the one that the predicting model was trained on; otherwise label)",
    )
    add(
        "--by",
        type=columns,
        metavar="COLUMN[,...]",
        help="what rows belong to, the smallest unit first (source and group, as far as a data set "
        "of tiles has them)",
    )
    add("--output", metavar="URI", help="also write the figures to this file, as JSON")
    add("--overwrite", action="store_true", help="replace the file in --output")
    add_master_flag(parser)
    return parser


def evaluate(flags: argparse.Namespace) -> None:
    """Evaluate as the flags say, and print the figures."""
    from distkeras_grid.inference.evaluator import AccuracyEvaluator
    from distkeras_grid.spark.dataframes import read_parquet
    from distkeras_grid.spark.storage import Storage

    spark = start_spark("distkeras-grid evaluate", flags.master)
    storage = Storage(spark)
    if flags.output and not flags.overwrite and storage.exists(flags.output):
        raise OutputExistsError(
            f"--output {flags.output!r} exists; choose another, or add --overwrite."
        )
    with spinner("comparing predictions with labels"):
        frame, columns = read_parquet(spark, flags.data), recorded_predictions(storage, flags.data)
        prediction = flags.prediction or columns.get("prediction", "prediction")
        label = flags.label or columns.get("label", "label")
        by = [flags.by] if isinstance(flags.by, str) else flags.by
        report = AccuracyEvaluator(prediction, label).report(frame, by)
    print_result(str(report))
    if flags.output:
        text = json.dumps(report.to_json()) + "\n"
        storage.write_text(flags.output, text, overwrite=flags.overwrite)
        print_result(f"wrote {flags.output}")


def check_early(flags: argparse.Namespace, place: preflight.SubmittedDriver | None) -> None:
    """Refuse what can be known before Spark starts."""
    preflight.check_output_file(flags.output, overwrite=flags.overwrite, place=place)
    preflight.check_input(flags.data, "--data", place)


main = main_of(build_parser, evaluate)

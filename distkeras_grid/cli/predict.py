"""``distkeras-grid predict``: a data set with the model's predictions beside its columns."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from distkeras_grid.cli import preflight
from distkeras_grid.cli.console import print_result
from distkeras_grid.cli.exit_codes import main_of
from distkeras_grid.cli.parser import (
    Parser,
    add_master_flag,
    add_selection_flags,
    columns,
    verb_parser,
)
from distkeras_grid.cli.run_metadata import MANIFEST, model_file, recorded_columns
from distkeras_grid.cli.spinner import spinner, start_spark
from distkeras_grid.engine.registry import current_backend
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.spark.atomic_output import Output, OutputKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION = 1
PREDICTIONS = OutputKind("set of predictions", marker=MANIFEST, others=("_SUCCESS", "part-*"))

DESCRIPTION = """\
Write a copy of a data set with the model's predictions in a new column: Parquet files, and
_predictions.json, which describes them. If images have groups, such as specimens, a column `group`
has them. The output appears complete or not at all.
"""
EPILOG = """\
examples:
  distkeras-grid predict --data tiles --split test --model runs/first --output predictions
  distkeras-grid submit predict --data hdfs:///tiles --model hdfs:///best.keras \\
      --features image --drop image --output hdfs:///predictions
"""


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = verb_parser("predict", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="Parquet data set")
    add("--model", required=True, help="FILE.keras, or the folder of a run, on any Hadoop path")
    add("--output", required=True, metavar="URI", help="folder to write, new or empty")
    add_selection_flags(
        parser, "predict this split of a tile data set, or several with commas (all rows)"
    )
    add(
        "--features",
        type=columns,
        metavar="COLUMN[,...]",
        help="feature column, or one for each input of the model, in its order (the columns that "
        "the run in --model was trained on; features if --model is not in a run)",
    )
    add(
        "--prediction",
        type=columns,
        default="prediction",
        metavar="COLUMN[,...]",
        help="new column, or one for each output (prediction, or prediction_NAME for each output)",
    )
    add(
        "--drop",
        action="append",
        default=[],
        metavar="COLUMN",
        help="leave this column out of the output, the pixels for instance; may be repeated",
    )
    add(
        "--overwrite",
        action="store_true",
        help="replace the predictions in --output when the new ones are complete; nothing else is "
        "replaced",
    )
    add_master_flag(parser)
    return parser


def predict(flags: argparse.Namespace) -> None:
    """Predict as the flags say, and write the data set."""
    from distkeras_grid.engine.keras_model import model_from_bytes
    from distkeras_grid.inference.predictor import ModelPredictor
    from distkeras_grid.spark.storage import Storage, escaped

    check_early(flags)
    source = model_file(flags.model)
    spark = start_spark("distkeras-grid predict", flags.master)
    storage = Storage(spark)
    output = Output(storage, flags.output, PREDICTIONS, overwrite=flags.overwrite)
    output.check(flags.data)
    frame = rows_of(spark, flags)
    features, labels = recorded_columns(storage, source, named=flags.features is not None)
    if flags.features is None:
        flags.features = features if len(features) > 1 else (features or ["features"])[0]
    with spinner("loading Keras and the model"):
        model = model_from_bytes(storage.read_bytes(source))
    predicted = ModelPredictor(model, flags.features, flags.prediction).predict(frame)
    with output.writing() as folder, spinner("predicting"):
        predicted.drop(*flags.drop).write.option("compression", "zstd").parquet(folder)
        count = spark.read.parquet(escaped(folder)).count()
        storage.write_text(
            f"{folder}/{MANIFEST}", json.dumps(manifest(flags, labels, count), indent=1)
        )
    print_result(f"predicted {count} rows; wrote {flags.output}")


def check_early(flags: argparse.Namespace, place: preflight.SubmittedDriver | None = None) -> None:
    """Refuse what can be known before Spark starts."""
    preflight.check_output(
        flags.output, PREDICTIONS, flags.data, overwrite=flags.overwrite, place=place
    )
    preflight.check_fold(flags.split, flags.fold)
    preflight.check_input(model_file(flags.model), "--model", place)
    preflight.check_input(flags.data, "--data", place)
    if flags.fold is None and flags.data_version is None:
        preflight.check_splits(flags.data, (flags.split or "").split(","), place)


def rows_of(spark: SparkSession, flags: argparse.Namespace) -> DataFrame:
    """Return the rows of a data set, or of the splits that ``--split`` names, or of a fold's."""
    from pyspark.sql import DataFrame

    from distkeras_grid.spark.dataframes import read_parquet, read_tiles

    version = flags.data_version
    if flags.split is None:
        return read_parquet(spark, flags.data, version=version)
    splits = tuple(dict.fromkeys(flags.split.split(",")))
    frames = read_tiles(flags.data, splits=splits, fold=flags.fold, version=version)
    return reduce(DataFrame.unionByName, frames)


def rows_where(rows: DataFrame, condition: str | None) -> DataFrame:
    """Return the rows that meet a condition in SQL; all without one."""
    from pyspark.errors import PySparkException

    from distkeras_grid.spark.dataframes import mark_data_set

    if condition is None:
        return rows
    try:
        return mark_data_set(rows.where(condition))
    except PySparkException as error:
        message = str(error).splitlines()[0]
        raise ConfigurationError(
            f"--where must be a condition on the columns {', '.join(rows.columns)}. Received: "
            f"{condition!r}. Spark says: {message}"
        ) from error


def manifest(flags: argparse.Namespace, labels: list[str], rows: int) -> dict[str, Any]:
    """Return the content of ``_predictions.json``."""
    from distkeras_grid.spark.interpreters import package_versions, training_packages

    names = ("data", "split", "fold", "data_version", "model", "features", "prediction", "drop")
    return {
        "version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **{name: getattr(flags, name) for name in names},
        "labels": labels,
        "rows": rows,
        "versions": package_versions(
            ("distkeras_grid", "pyspark", *training_packages(current_backend()))
        ),
    }


main = main_of(build_parser, predict)

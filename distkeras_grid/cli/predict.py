"""``distkeras-grid predict``: a data set with the model's predictions beside its columns."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from distkeras_grid.cli.exit_codes import exit_codes_help, guarded
from distkeras_grid.errors import OutputExistsError


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="distkeras-grid predict",
        description="Write a data set again with the model's predictions in a new column.",
        epilog=exit_codes_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="Parquet data set")
    add("--model", required=True, help="FILE.keras, or the folder of a run, on any Hadoop path")
    add("--output", required=True, metavar="URI", help="folder for the Parquet files")
    add("--split", help="predict this split of a tile data set (default: all rows)")
    add("--features", default="features", metavar="COLUMN", help="feature column (features)")
    add("--prediction", default="prediction", metavar="COLUMN", help="new column (prediction)")
    add("--drop", action="append", default=[], metavar="COLUMN", help="leave a column out; repeat")
    add("--overwrite", action="store_true", help="replace what is in --output")
    add("--master", help="Spark master of a session started here (default: local[*,4])")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return guarded(lambda: predict(flags))


def predict(flags: argparse.Namespace) -> None:
    """Predict as the flags say, and write the data set."""
    from distkeras_grid.engine.keras_model import model_from_bytes
    from distkeras_grid.inference.predictor import ModelPredictor
    from distkeras_grid.spark.dataframes import read_parquet, read_tiles
    from distkeras_grid.spark.session import build_session, check_executors
    from distkeras_grid.spark.storage import Storage

    spark = build_session("distkeras-grid predict", master=flags.master)
    storage = Storage(spark)
    if not flags.overwrite and storage.exists(flags.output):
        raise OutputExistsError(
            f"--output {flags.output!r} exists; choose another, or add --overwrite."
        )
    frame = read_parquet(spark, flags.data)
    if flags.split is not None:
        frame = read_tiles(flags.data, splits=(flags.split,))[0]
    source = flags.model if flags.model.endswith(".keras") else f"{flags.model}/model.keras"
    model = model_from_bytes(storage.read_bytes(source))
    check_executors(spark)
    predictor = ModelPredictor(model, flags.features, flags.prediction)
    predicted = predictor.predict(frame).drop(*flags.drop)
    # Written beside and renamed, so that a job that dies leaves no half data set behind.
    temporary = f"{flags.output}.writing"
    predicted.write.mode("overwrite").option("compression", "zstd").parquet(temporary)
    storage.rename(temporary, flags.output, overwrite=flags.overwrite)
    rows = spark.read.parquet(flags.output).count()
    print(f"predicted {rows} rows; wrote {flags.output}")

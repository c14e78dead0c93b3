"""``distkeras-grid predict``: a data set with the model's predictions beside its columns."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distkeras_grid.cli.exit_codes import exit_codes_help, guarded
from distkeras_grid.errors import OutputExistsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from distkeras_grid.spark.storage import Storage


EPILOG = """\
examples:
  distkeras-grid predict --data tiles --split test --model runs/first --features image \\
      --output predictions
  spark-submit --master yarn jobs/predict.py --data hdfs:///tiles --model hdfs:///best.keras \\
      --features image --drop image --output hdfs:///predictions
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="distkeras-grid predict",
        description="Write a data set again with the model's predictions in a new column.",
        epilog=EPILOG + "\n" + exit_codes_help(),
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
    output = flags.output.rstrip("/")
    if not flags.overwrite and storage.exists(output):
        raise OutputExistsError(f"--output {output!r} exists; choose another, or add --overwrite.")
    frame = read_parquet(spark, flags.data)
    if flags.split is not None:
        frame = read_tiles(flags.data, splits=(flags.split,))[0]
    source = flags.model if flags.model.endswith(".keras") else f"{flags.model}/model.keras"
    model = model_from_bytes(storage.read_bytes(source))
    check_executors(spark)
    predictor = ModelPredictor(model, flags.features, flags.prediction)
    predicted = predictor.predict(frame).drop(*flags.drop)
    write_parquet(storage, predicted, output, overwrite=flags.overwrite)
    rows = spark.read.parquet(output).count()
    print(f"predicted {rows} rows; wrote {output}")


def write_parquet(storage: Storage, frame: DataFrame, output: str, *, overwrite: bool) -> None:
    """Write a data set that appears whole or not at all.

    Parameters
    ----------
    storage : Storage
        Of the session.
    frame : DataFrame
        Computed here.
    output : str
        Folder, without a slash at its end.
    overwrite : bool
        Whether to replace a folder of that name, once the new one is complete.
    """
    folder, _, name = storage.resolve(output).rpartition("/")
    # Spark and Hadoop skip such names when they read the folder above.
    hidden = f"{folder}/_{name}.{uuid.uuid4().hex}"
    temporary, replaced = f"{hidden}.tmp", f"{hidden}.old"
    try:
        # A path that cannot be written is told before anything is computed.
        storage.make_dirs(temporary)
        frame.write.mode("overwrite").option("compression", "zstd").parquet(temporary)
        if overwrite and storage.exists(output):
            storage.rename(output, replaced)
        storage.rename(temporary, output)
        storage.delete(replaced)
    finally:
        storage.delete(temporary)

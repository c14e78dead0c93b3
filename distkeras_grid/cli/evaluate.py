"""``distkeras-grid evaluate``: predictions against labels, by class."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distkeras_grid.cli import early
from distkeras_grid.cli.console import tell
from distkeras_grid.cli.exit_codes import exit_codes_help, guarded
from distkeras_grid.errors import OutputExistsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


DESCRIPTION = """\
Compare a prediction column with a label column: accuracy and confusion. Predictions that hold NaN
name no class, so they are an error, which says how many they are.
"""
EPILOG = """\
examples:
  distkeras-grid evaluate --data predictions
  spark-submit --master yarn jobs/evaluate.py --data hdfs:///predictions \\
      --output hdfs:///figures.json
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="distkeras-grid evaluate",
        description=DESCRIPTION,
        epilog=EPILOG + "\n" + exit_codes_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="Parquet data set with both columns")
    add("--prediction", default="prediction", metavar="COLUMN", help="(prediction)")
    add("--label", default="label", metavar="COLUMN", help="(label)")
    add("--output", metavar="URI", help="also write the figures to this file, as JSON")
    add("--overwrite", action="store_true", help="replace the file in --output")
    add("--master", help="Spark master of a session started here (default: local[*,4])")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return guarded(lambda: evaluate(flags))


def evaluate(flags: argparse.Namespace) -> None:
    """Evaluate as the flags say, and print the figures."""
    from distkeras_grid.inference.evaluator import confusion_matrix
    from distkeras_grid.spark.dataframes import read_parquet
    from distkeras_grid.spark.session import build_session
    from distkeras_grid.spark.storage import Storage

    early.check_output_file(flags.output, overwrite=flags.overwrite)
    early.check_input(flags.data, "--data")
    spark = build_session("distkeras-grid evaluate", master=flags.master)
    storage = Storage(spark)
    if flags.output and not flags.overwrite and storage.exists(flags.output):
        raise OutputExistsError(
            f"--output {flags.output!r} exists; choose another, or add --overwrite."
        )
    matrix = confusion_matrix(read_parquet(spark, flags.data), flags.prediction, flags.label)
    figures: dict[str, Any] = {
        "accuracy": float(matrix.trace() / matrix.sum()),
        "rows": int(matrix.sum()),
        "confusion": matrix.tolist(),
    }
    tell(f"accuracy {figures['accuracy']:.4f} on {figures['rows']} rows")
    tell(format_confusion(matrix))
    if flags.output:
        text = json.dumps(figures) + "\n"
        storage.write_text(flags.output, text, overwrite=flags.overwrite)
        tell(f"wrote {flags.output}")


def format_confusion(matrix: NDArray[np.int64]) -> str:
    r"""Return the matrix as text, labels in rows and predictions in columns.

    Examples
    --------
    >>> import numpy as np
    >>> print(format_confusion(np.array([[5, 1], [0, 12]])))
    label \ predicted   0   1
                    0   5   1
                    1   0  12
    """
    width = max(len(str(matrix.max())), len(str(len(matrix)))) + 2
    head = "label \\ predicted"
    lines = [head + "".join(f"{column:>{width}}" for column in range(len(matrix)))]
    for number, row in enumerate(matrix):
        lines.append(f"{number:>{len(head)}}" + "".join(f"{count:>{width}}" for count in row))
    return "\n".join(lines)

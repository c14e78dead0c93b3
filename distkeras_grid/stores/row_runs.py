"""Finds the rows of a DataFrame in its Parquet files: few runs in place of many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import EmptyDataError, LabelError, SchemaError
from distkeras_grid.local_sets.tile_index import Numbers
from distkeras_grid.spark.columns import Columns, quoted
from distkeras_grid.spark.dataframes import SPLIT_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: The column that names the image of a tile.
SOURCE_COLUMN = "source"
_RUNS = "file string, size long, row long, tiles long, label long, source string, split string"


def find_runs(frame: DataFrame, columns: Columns) -> pa.Table:
    """Find the rows of a DataFrame in its files, with one job that reads no pixels.

    A run is consecutive rows with the same image, class and split. The table has for each run its
    file (the full path, quoted as Spark quotes it), the file's size in bytes, the first row, the
    number of rows, class, image and split, in the order of the files.

    `frame`: rows of Parquet files. They may be filtered or joined, but not moved to other files.
    """
    by_image = SOURCE_COLUMN in frame.columns
    table = _select(frame, columns).mapInArrow(_run_finder(by_image), _RUNS).toArrow()
    if not table.num_rows:
        raise EmptyDataError("The data have no rows. Check the path and the filter.")
    _check_labels(table, columns)
    return table.sort_by([("file", "ascending"), ("row", "ascending")])


def _select(frame: DataFrame, columns: Columns) -> DataFrame:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    def text(name: str) -> Any:
        column = F.col(name).cast("string") if name in frame.columns else F.lit(None).cast("string")
        return F.coalesce(column, F.lit("")).alias(name)

    try:
        return frame.select(
            F.col("_metadata.file_path").alias("file"),
            F.col("_metadata.file_size").alias("size"),
            F.col("_metadata.row_index").alias("row"),
            F.col(quoted(columns.labelled[0].name)).cast("long").alias("label"),
            text(SOURCE_COLUMN),
            text(SPLIT_COLUMN),
        )
    except AnalysisException as error:
        raise SchemaError(
            "Local sets are read from Parquet files, and the rows of this DataFrame do not tell "
            f"where they lie: {str(error).splitlines()[0]} Write it to Parquet first."
        ) from error


def _check_labels(table: pa.Table, columns: Columns) -> None:
    import pyarrow.compute as pc

    label, problem = columns.labelled[0], ""
    if label.shape or label.dtype != "int64":
        problem = "numbers that are not whole"
    elif table.column("label").null_count:
        problem = "null"
    elif (lowest := pc.min(table.column("label")).as_py()) < 0:
        problem = str(lowest)
    if problem:
        raise LabelError(
            f"Local sets are balanced over the classes, so column {label.name!r} must hold the "
            f"number of a class, from 0, in every row. Received: {problem}."
        )


def numbered(column: pa.ChunkedArray) -> tuple[Numbers, tuple[str, ...]]:
    """Return strings as numbers, in the order of first occurrence, and the distinct strings."""
    encoded = column.combine_chunks().dictionary_encode()
    numbers: NDArray[Any] = encoded.indices.to_numpy()
    return numbers.astype(np.int64), tuple(encoded.dictionary.to_pylist())


def _run_finder(
    by_image: bool,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task, which turns many rows into few runs."""

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            if not batch.num_rows:
                continue
            rows = batch.column("row").to_numpy()
            differs = np.ones(len(rows), np.bool_)
            differs[1:] = np.diff(rows) != 1
            for name in ("file", "label", "source", "split"):
                column = batch.column(name)
                changed = pc.fill_null(pc.not_equal(column[1:], column[:-1]), True)
                differs[1:] |= changed.to_numpy(zero_copy_only=False)
            if not by_image:
                differs[:] = True
            first = np.flatnonzero(differs)
            counts = np.diff([*first, len(rows)])
            chosen = batch.take(pa.array(first))
            columns = {name: chosen.column(name) for name in chosen.schema.names}
            columns["tiles"] = pa.array(counts, pa.int64())
            names = [each.split()[0] for each in _RUNS.split(", ")]
            yield pa.RecordBatch.from_pydict({name: columns[name] for name in names})

    return find

"""Which row goes to which worker, the same in every attempt.

Rows are numbered in the data's own order (partition after partition), or were when they were
written (`distkeras_grid.spark.materialized_rows`). The number decides the seat and, on the worker,
the order. So a task that runs again sees the same rows in the same order, and the server tells it
with which window to continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import EmptyDataError, SplitLeakError
from distkeras_grid.feeding.row_cache import HASH, ROW, WEIGHT, sent_names
from distkeras_grid.feeding.targets import LabelSummary, Takes
from distkeras_grid.spark.columns import NO_ROWS, Columns, quoted, value_expression
from distkeras_grid.spark.dataframes import SPLIT_COLUMN
from distkeras_grid.spark.label_columns import (
    LABEL,
    PARTITION,
    SPLIT,
    SUMMARIES,
    merge_summaries,
    summarize_batches,
)
from distkeras_grid.spark.materialized_rows import IDENTITY
from distkeras_grid.spark.partitions import partition_key
from distkeras_grid.spark.worker_jobs import limit_arrow_batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SEAT = "_distkeras_grid_seat"
_KEY = "key"

CHANGED = (
    "The data have changed since their rows were counted, or Spark reads their files in other "
    "partitions (spark.sql.files.*). Start the run again, and leave data and settings as they are."
)

# monotonically_increasing_id() is (partition << 33) + the row's position in the partition.
_PARTITION_SHIFT = 33


@dataclass(frozen=True)
class DataSummary:
    """What one job finds out about the data."""

    rows: int  # Total number of rows
    partition_rows: tuple[tuple[int, int], ...]  # Partition number and its rows, ascending
    labels: tuple[LabelSummary, ...]  # The numbers of each label column
    splits: tuple[str, ...]  # Values of the split column, sorted; empty without such a column


def summarize(
    frame: DataFrame, columns: Columns, takes: Sequence[Takes] | None = None
) -> DataSummary:
    """Count rows, and look at labels and splits, in one job."""
    from pyspark.sql import functions as F

    labels = columns.labelled
    split = F.col(SPLIT_COLUMN) if SPLIT_COLUMN in frame.columns else F.lit(None)
    read = frame.select(
        _partition(frame).alias(PARTITION),
        split.cast("string").alias(SPLIT),
        *(
            value_expression(frame, label).alias(LABEL.format(place))
            for place, label in enumerate(labels)
        ),
    )
    task = partial(summarize_batches, labels, takes or [Takes()] * len(labels))
    with limit_arrow_batch(frame.sparkSession):
        parts = read.mapInArrow(task, SUMMARIES).collect()
    return check_summary(parts, columns)


def check_summary(parts: Sequence[Any], columns: Columns) -> DataSummary:
    """Turn rows of `SUMMARIES` into a `DataSummary`, or refuse the data."""
    if not parts:
        raise EmptyDataError(NO_ROWS)
    labels = merge_summaries(parts, columns.labelled)
    splits = tuple(sorted({split for part in parts for split in part["splits"]}))
    if len(splits) > 1:
        raise SplitLeakError(
            f"Training needs the rows of one split. Received: rows of {', '.join(splits)}. "
            f"Filter first: data.where(\"{SPLIT_COLUMN} = 'train'\")."
        )
    rows = Counter[int]()
    for part in parts:
        rows[part["partition"]] += part["rows"]
    return DataSummary(rows.total(), tuple(sorted(rows.items())), labels, splits)


def largest_seat(rows: int, seats: int) -> int:
    """Return how many rows the largest of `seats` seats has; seats differ by at most one row."""
    return -(-rows // seats)


def partition_rows(
    frame: DataFrame,
    columns: Columns,
    summary: DataSummary,
    seats: int,
    *,
    shuffle: bool,
    seed: int = 0,
    copies: bool = False,
    partitions: int | None = None,
) -> DataFrame:
    """Return the rows dealt to `seats` partitions, partition i for worker i.

    There may be more `partitions`, which are empty.

    With `shuffle` neighboring rows go to different seats, so that each seat has tiles of every
    source. Of each `seats` consecutive rows one goes to each seat. `seed` decides with which seat
    they begin; otherwise, data that alternate between two classes would give two workers one class
    each. Without `shuffle`, seats have consecutive ranges in the data's order. With `copies` each
    seat has all rows.
    """
    from pyspark.sql import functions as F

    chosen = [_row_number(frame, summary).alias(ROW), *worker_columns(frame, columns)]
    row, rows = F.col(ROW), frame.select(*chosen)
    rows = rows.withColumn(HASH, F.xxhash64(*rows.columns))
    if copies:
        rows = rows.withColumn(_SEAT, F.explode(F.sequence(F.lit(0), F.lit(seats - 1))))
        seat = F.col(_SEAT)
    elif shuffle:
        first = F.pmod(F.xxhash64(F.lit(seed), F.floor(row / seats)), F.lit(seats))
        seat = F.pmod(row + first, F.lit(seats))
    else:
        seat = F.floor(row * seats / F.lit(summary.rows))
    keys = F.lit([partition_key(number) for number in range(seats)])
    rows = rows.withColumn(_KEY, F.get(keys, seat.cast("int")))
    return rows.repartition(partitions or seats, F.col(_KEY)).drop(_KEY, _SEAT)


def _partition(frame: DataFrame) -> Column:
    """Return the number of the partition in which a row is, or was when it was stored."""
    from pyspark.sql import functions as F

    if IDENTITY not in frame.columns:
        return F.spark_partition_id()
    return F.shiftrightunsigned(F.col(IDENTITY), _PARTITION_SHIFT).cast("int")


def _row_number(frame: DataFrame, summary: DataSummary) -> Column:
    """Return the row's number: its position in the partition plus the rows of all earlier ones.

    A row beyond those that `summarize` counted in its partition is an error. Its number would
    belong to another row, too, and a task that runs again could not continue.
    """
    from pyspark.sql import functions as F

    stored = IDENTITY in frame.columns
    identity = F.col(IDENTITY) if stored else F.monotonically_increasing_id()
    partition = F.shiftrightunsigned(identity, _PARTITION_SHIFT).cast("int")
    place = identity.bitwiseAND(F.lit((1 << _PARTITION_SHIFT) - 1))
    last = summary.partition_rows[-1][0]
    rows = dict(summary.partition_rows)
    counts = [rows.get(number, 0) for number in range(last + 1)]
    count = F.coalesce(F.get(F.lit(counts), partition), F.lit(0))
    start = F.get(F.lit([0, *accumulate(counts[:-1])]), partition).cast("long")
    return F.when(place < count, place + start).otherwise(F.raise_error(CHANGED).cast("long"))


def worker_columns(frame: DataFrame, columns: Columns) -> list[Column]:
    """Return features, labels and, if asked for, weights, by the names of `sent_names`."""
    from pyspark.sql import functions as F

    named = chain(*sent_names(columns.features, columns.labelled))
    fields = (*columns.features, *columns.labelled)
    weights = [] if columns.weight is None else [F.col(quoted(columns.weight)).cast("float")]
    return [
        *(
            value_expression(frame, field).alias(name)
            for name, field in dict(zip(named, fields, strict=True)).items()
        ),
        *(column.alias(WEIGHT) for column in weights),
    ]

"""Rows that Spark may compute in another order, stored once for all attempts of a run.

The number of a row is its place in the data. If an executor is lost, Spark computes its rows again.
Files give the same rows in the same order each time. Behind a shuffle they may come in another
order, because blocks arrive from other executors in no order. So the columns of the run are stored
with their numbers, where an executor's death does not take them:

- below ``checkpoint_dir``, where a run that goes on finds them again;
- else in the user's home directory on the cluster's file system, until the run ends
  (`distkeras_grid.spark.temporary_rows`);
- else on the disks of the executors. In local mode these are the driver's own, and last as long.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import StorageError
from distkeras_grid.signals import interrupts_first, is_interrupt
from distkeras_grid.spark.cancel import stop_work
from distkeras_grid.spark.columns import Columns, quoted
from distkeras_grid.spark.dataframes import SPLIT_COLUMN
from distkeras_grid.spark.session import local_cores
from distkeras_grid.spark.storage import Storage, escaped, translated
from distkeras_grid.spark.worker_jobs import job_error, spark_reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Column of the stored rows: the number of the partition << 33, plus the place in it.
IDENTITY = "_distkeras_grid_identity"
_RUN = "_distkeras_grid_run"
_STORED = "column_{}"

# Spark calls them nondeterministic because they depend on where a row is, not only on the row. A
# row of a file is always at the same place.
_OF_THE_PLACE = frozenset(
    {
        "InputFileName",
        "InputFileBlockStart",
        "InputFileBlockLength",
        "MonotonicallyIncreasingID",
        "SparkPartitionID",
    }
)

# Parts of physical plans that pass the rows of one side on in their order. The other side of a
# broadcast join is collected by the driver, partition after partition.
_ROW_BY_ROW = frozenset(
    {
        "BroadcastExchangeExec",
        "BroadcastHashJoinExec",
        "ColumnarToRowExec",
        "FilterExec",
        "InputAdapter",
        "ProjectExec",
        "WholeStageCodegenExec",
    }
)

# Rows with pixels are long. Parquet's writer holds a row group in memory, and by default looks at
# its size after 100 rows at the earliest.
_WRITER = {
    "parquet.block.size": 32 << 20,
    "parquet.block.size.row.check.min": 16,
    "parquet.block.size.row.check.max": 1000,
    "parquet.page.size.row.check.min": 4,
    "parquet.page.size.row.check.max": 1000,
}


@dataclass(frozen=True)
class StoredRows:
    """The rows of a run, as they were stored."""

    folder: str  # Where they are
    bytes: int  # Bytes of the files
    # How long it took to compute and to write them [s]; 0 if an earlier run has done it
    seconds: float
    frame: DataFrame = field(repr=False)  # They themselves, with a column `IDENTITY`

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.rpartition("/")[2]

    def to_json(self) -> dict[str, Any]:
        """Return what the history says about them."""
        return {"folder": self.folder, "bytes": self.bytes, "seconds": self.seconds}

    def sentence(self) -> str:
        """Return a line for the user."""
        size = f"{self.bytes / 1e6:.3g} MB"
        if not self.seconds:
            return f"The rows are those that the run stored when it began: {size} in {self.folder}"
        return (
            f"The rows may come in another order each time that Spark computes them, so they were "
            f"stored: {size} in {self.seconds:.1f} s, in {self.folder}"
        )


def chosen_columns(frame: DataFrame, columns: Columns) -> DataFrame:
    """Return the columns of the data that the run reads."""
    read = (*columns.features, *columns.labelled)
    names = [*(name for each in read for name in each.sources), columns.weight, SPLIT_COLUMN]
    return frame.select(*(quoted(name) for name in frame.columns if name in names))


def is_repeatable(frame: DataFrame) -> bool:
    """Tell whether Spark computes the same rows in the same order each time.

    It is so for files, ranges and collections of the driver, also filtered, with other columns, one
    after another, and joined with a table that is broadcast by a hint (``F.broadcast``), unless a
    function draws at random. Spark itself knows this of its RDDs (``outputDeterministicLevel``),
    and uses it when it starts tasks again.
    """
    plans: Any = frame._jdf.queryExecution()
    logical, physical = plans.optimizedPlan(), plans.executedPlan()
    if "subquery" in str(physical.toString()).lower():
        return False
    return _draws_nothing(logical) and _joins_by_hint(logical) and _keeps_order(physical)


def _keeps_order(plan: Any) -> bool:
    """Tell whether each task of a physical plan reads the same rows in the same order each time."""
    if "Exchange" not in str(plan.toString()):
        level = plan.execute().outputDeterministicLevel()
        return str(level.toString()) == "DETERMINATE"
    # Such a plan must not be asked for its RDD: its exchanges would be executed for that.
    kind = str(plan.getClass().getSimpleName())
    if kind == "AdaptiveSparkPlanExec":
        return _keeps_order(plan.initialPlan())
    return kind in _ROW_BY_ROW and all(map(_keeps_order, _items(plan.children())))


def _joins_by_hint(plan: Any) -> bool:
    """Tell whether every join has a side that the user wants to be broadcast.

    Otherwise Spark chooses from the sizes of the columns, and may choose another way for a query of
    fewer columns of the same data.
    """
    if str(plan.getClass().getSimpleName()) == "Join" and (
        "strategy=broadcast" not in str(plan.hint().toString())
    ):
        return False
    return all(map(_joins_by_hint, _items(plan.children())))


def _draws_nothing(plan: Any) -> bool:
    """Tell whether all expressions of a plan have the same values each time."""
    if plan.deterministic():
        return True
    return all(map(_is_repeatable, _items(plan.expressions()))) and all(
        map(_draws_nothing, _items(plan.children()))
    )


def _is_repeatable(expression: Any) -> bool:
    if expression.deterministic():
        return True
    children = [each for each in _items(expression.children()) if not each.deterministic()]
    if children:
        return all(map(_is_repeatable, children))
    return str(expression.getClass().getSimpleName()) in _OF_THE_PLACE


def _items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]


def store_rows(frame: DataFrame, columns: Columns, folder: str) -> StoredRows:
    """Compute the columns of a run once, and write them with the numbers of the rows."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    began, files = time.monotonic(), Storage(frame.sparkSession)
    folder = files.resolve(folder)
    # Refused here, the path is named; in the job, Spark would name a task.
    _make_dirs(files, folder, str(frame.sparkSession.sparkContext.master))
    chosen, observed = chosen_columns(frame, columns), Observation()
    # Under names that Parquet takes, whatever the user's are.
    renamed = [
        F.col(quoted(name)).alias(_STORED.format(place))
        for place, name in enumerate(chosen.columns)
    ]
    numbered = chosen.select(*renamed, F.monotonically_increasing_id().alias(IDENTITY))
    counted = numbered.observe(observed, F.count(F.lit(1)).alias("rows"))
    try:
        with _explained("store rows"):
            # "overwrite" would make the folder anew, with the rights of any other.
            counted.write.options(**_WRITER).mode("append").parquet(folder)
        check_shared(frame.sparkSession, folder, int(observed.get["rows"]))
    except BaseException as error:
        if is_interrupt(error):
            stop_work()
        files.discard(folder, error)
        raise
    return _read(frame.sparkSession, chosen.columns, folder, time.monotonic() - began)


def check_shared(spark: SparkSession, folder: str, rows: int) -> None:
    """Refuse a folder that is another one on each host."""
    try:
        with translated("read", folder):
            count = spark.read.parquet(escaped(folder)).count()
    except StorageError as error:
        raise StorageError(f"{_not_shared(folder)} {error}") from error
    if count != rows:
        raise StorageError(f"{_not_shared(folder)} Received: {count} of {rows} rows.")


def _not_shared(folder: str) -> str:
    return (
        f"What executors have written to {folder} cannot be read by all of them. Give a "
        "checkpoint_dir on a path that all hosts share, such as one of HDFS."
    )


def read_rows(frame: DataFrame, columns: Columns, folder: str) -> StoredRows:
    """Return the rows that an earlier execution of the run has stored."""
    files = Storage(frame.sparkSession)
    folder = files.resolve(folder)
    files.list_names(folder)
    return _read(frame.sparkSession, chosen_columns(frame, columns).columns, folder, 0.0)


def _read(spark: SparkSession, names: list[str], folder: str, seconds: float) -> StoredRows:
    from pyspark.sql import functions as F

    with translated("read", folder):
        stored = spark.read.parquet(escaped(folder))
    due = [*(_STORED.format(place) for place in range(len(names))), IDENTITY]
    if stored.columns != due:
        raise StorageError(
            f"{folder} has the rows of a run with other columns: {len(stored.columns) - 1}, not "
            f"{len(names)}. Give the data with which the run began."
        )
    back = [F.col(old).alias(name) for old, name in zip(due, names, strict=False)]
    frame = stored.select(*back, F.col(IDENTITY))
    return StoredRows(folder, Storage(spark).size(folder), seconds, frame)


def _make_dirs(files: Storage, folder: str, master: str) -> None:
    """Create the folder of rows, which others may not be allowed to read in their source.

    On a disk that hosts share, executors may write as another user than the driver.
    """
    if folder.startswith("file:") and local_cores(master) is None:
        files.make_dirs(folder)
    else:
        files.make_private_dirs(folder)


@contextmanager
def persisted_rows(frame: DataFrame, columns: Columns) -> Iterator[DataFrame]:
    """Yield the columns of a run, computed once and kept on the disks of the executors.

    What is lost with an executor is computed again, and may have another order.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    # Spark would share equal plans with another run of this driver, and drop them with the first.
    own = F.lit(secrets.token_hex(8)).alias(_RUN)
    rows = chosen_columns(frame, columns).select("*", own).persist(StorageLevel.DISK_ONLY)
    try:
        yield rows
    finally:
        rows.unpersist()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn the error of a Spark job into ours."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        with interrupts_first():
            yield
    except (Py4JJavaError, PySparkException) as error:
        # Spark has tried the job's tasks as often as it may.
        raise job_error(name, spark_reason(error), "") from error

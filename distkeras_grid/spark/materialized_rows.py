"""The rows of a run: a data set is read as it is, any other DataFrame is written to Parquet once.

The number of a row is its place in the data, and a worker's second attempt needs the same rows.
Files give the same rows in the same order at each read. Any other DataFrame may be computed in
another order, so its columns are written with their row numbers:

- below ``checkpoint_dir``, where a run that is resumed finds them;
- else in the user's home directory on the cluster's file system, until the run ends;
- else in Spark's temporary directory on the driver, which is deleted with the session. Executors
  on other hosts cannot read it, so it is refused there.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import GridError, StorageError
from distkeras_grid.signals import interrupts_first, is_interrupt
from distkeras_grid.spark.cancel import stop_work
from distkeras_grid.spark.columns import Columns, quoted
from distkeras_grid.spark.dataframes import SPLIT_COLUMN, is_data_set
from distkeras_grid.spark.internals import temporary_directory
from distkeras_grid.spark.session import local_cores, task_slots
from distkeras_grid.spark.storage import Storage, escaped
from distkeras_grid.spark.storage_errors import translated
from distkeras_grid.spark.worker_jobs import job_error, limit_arrow_batch, spark_reason

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from distkeras_grid.spark.checkpoints import CheckpointStore

#: Column of the stored rows: the number of the partition << 33, plus the place in it.
IDENTITY = "_distkeras_grid_identity"
_STORED = "column_{}"

# Below the user's home directory.
FOLDER = ".distkeras_grid/rows"
# A run deletes its rows. Those of a driver that was killed are deleted by a later run after:
EXPIRY = timedelta(days=30)

# Rows with pixels are long. Parquet's writer holds a row group in memory, and by default looks at
# its size after 100 rows at the earliest.
_WRITER = {
    "parquet.block.size": 32 << 20,
    "parquet.block.size.row.check.min": 16,
    "parquet.block.size.row.check.max": 1000,
    "parquet.page.size.row.check.min": 4,
    "parquet.page.size.row.check.max": 1000,
}

NOT_SHARED = (
    "Not all executors have the folder {}, so they cannot share rows there. Give a checkpoint_dir "
    "on a path that all hosts share, such as one of HDFS, or train on the path of a Parquet data "
    "set."
)


@dataclass(frozen=True)
class StoredRows:
    """The rows of a run, as they were written."""

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
            return f"The rows are those that the run wrote when it began: {size} in {self.folder}"
        return (
            f"The rows of the DataFrame were written to Parquet: {size} in {self.seconds:.1f} s, "
            f"to {self.folder}"
        )


@contextmanager
def materialized(
    frame: DataFrame,
    columns: Columns,
    *,
    checkpoints: CheckpointStore | None,
    earlier: str | None,
    say: Callable[[str], object],
) -> Iterator[tuple[DataFrame, StoredRows | None]]:
    """Yield rows that are the same in the same order each time, and how they were written.

    `earlier`: folder in which an earlier execution of the run has written them.
    """
    if earlier is not None:
        rows = read_rows(frame, columns, earlier)
        say(rows.sentence())
        yield rows.frame, rows
        return
    if is_data_set(frame):
        yield frame, None
        return
    folder = temporary_folder(frame.sparkSession) if checkpoints is None else checkpoints.new_rows()
    rows = store_rows(frame, columns, folder)
    say(rows.sentence())
    try:
        yield rows.frame, rows
    finally:
        # The result of the run is complete, or its error says more.
        try:
            if checkpoints is None:
                Storage(frame.sparkSession).delete(folder)
            else:
                checkpoints.drop_rows(folder)
        except GridError as error:
            say(f"The rows in {folder} may be left behind: {error}")


def temporary_folder(spark: SparkSession) -> str:
    """Return a new folder for the rows of a run without checkpoints.

    It is deleted when the driver's JVM exits, if not before.
    """
    files = Storage(spark)
    home = files.home()
    if local_cores(str(spark.sparkContext.master)) is not None or home.startswith("file:"):
        # Hadoop's "home" would be a folder on each host.
        return f"file:{temporary_directory(spark)}/rows-{secrets.token_hex(16)}"
    root = f"{home}/{FOLDER}"
    try:
        # Others may not be allowed to read what the rows are computed of.
        files.make_private_dirs(root)
        for name in expired(files.list_names(root), datetime.now(UTC).date()):
            files.delete(f"{root}/{name}")
        folder = f"{root}/rows-{datetime.now(UTC):%Y%m%d}-{secrets.token_hex(16)}"
        files.make_private_dirs(folder)
        # Hadoop notes only what exists.
        files.delete_on_exit(folder)
    except StorageError as error:
        raise type(error)(
            f"{error} The rows of a DataFrame are written there for the run. Give a "
            "checkpoint_dir, or train on the path of a Parquet data set."
        ) from error
    return folder


def expired(names: Iterable[str], today: date) -> list[str]:
    """Return the folders of rows that were written too long ago for a run that still lives.

    Examples
    --------
    >>> expired(["rows-20261001-ab", "rows-20261126-ab", "mine"], date(2026, 11, 27))
    ['rows-20261001-ab']
    """
    dated = ((name, name.split("-")) for name in names if name.startswith("rows-"))
    before = f"{today - EXPIRY:%Y%m%d}"
    return [name for name, parts in dated if len(parts) == 3 and parts[1] < before]


def chosen_columns(frame: DataFrame, columns: Columns) -> DataFrame:
    """Return the columns of the data that the run reads."""
    read = (*columns.features, *columns.labelled)
    names = [*(each.name for each in read), columns.weight, SPLIT_COLUMN]
    return frame.select(*(quoted(name) for name in frame.columns if name in names))


def store_rows(frame: DataFrame, columns: Columns, folder: str) -> StoredRows:
    """Compute the columns of a run once, and write them with the numbers of the rows."""
    from pyspark.sql import functions as F

    spark = frame.sparkSession
    began, files = time.monotonic(), Storage(spark)
    folder = files.resolve(folder)
    local = local_cores(str(spark.sparkContext.master)) is not None
    chosen = chosen_columns(frame, columns)
    # Under names that Parquet takes, whatever the user's are.
    renamed = [
        F.col(quoted(name)).alias(_STORED.format(place))
        for place, name in enumerate(chosen.columns)
    ]
    numbered = chosen.select(*renamed, F.monotonically_increasing_id().alias(IDENTITY))
    try:
        if folder.startswith("file:") and not local:
            # Executors may write as another user than the driver.
            files.make_dirs(folder)
            _check_hosts(spark, folder)
        else:
            # Others may not be allowed to read what the rows are computed of.
            files.make_private_dirs(folder)
        with _explained("store rows"), limit_arrow_batch(spark):
            # "overwrite" would make the folder anew, with the rights of any other.
            numbered.write.options(**_WRITER).mode("append").parquet(folder)
    except BaseException as error:
        if is_interrupt(error):
            stop_work()
        files.discard(folder, error)
        raise
    return _read(spark, chosen.columns, folder, time.monotonic() - began)


def _check_hosts(spark: SparkSession, folder: str) -> None:
    """Refuse a local folder that not all executors have, before they write to their own disks."""
    path = folder.removeprefix("file:")

    def look(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        import pyarrow

        yield pyarrow.RecordBatch.from_pydict({"there": [os.path.isdir(path)]})

    # With dynamic allocation, executors may come with this job only.
    slots = max(1, task_slots(spark))
    with _explained("look for the folder of rows"):
        looks = spark.range(0, slots, 1, slots).mapInArrow(look, "there boolean").collect()
    if not all(row["there"] for row in looks):
        raise StorageError(NOT_SHARED.format(folder))


def read_rows(frame: DataFrame, columns: Columns, folder: str) -> StoredRows:
    """Return the rows that an earlier execution of the run has written."""
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

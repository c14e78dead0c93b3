"""The scan of image files on executors: each is opened once, and a `Measure` says what is found.

Tasks are generators over Arrow batches, one file in: no batch holds all the tiles of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from data_prep.dataset.plan import chunk_by_size
from data_prep.images.crash_isolation import LATER, DecodeSandbox, IsolationPolicy
from data_prep.images.file_access import SPARK, FileOpener, OpenFile, choose_opening
from distkeras_grid.errors import ImageError
from distkeras_grid.progress import Say
from distkeras_grid.signals import interrupts_first
from distkeras_grid.spark.memory import python_limit_mb
from distkeras_grid.spark.partitions import partition_key
from distkeras_grid.spark.session import setting_of_session, task_slots
from distkeras_grid.spark.storage import Storage, escaped
from distkeras_grid.spark.worker_jobs import DIED, spark_reason

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CHANGED = "has changed since the job began"
# Bytes of image files in one task of a scan.
TASK_BYTES = 64 << 20
# Files of one Spark job of a scan: their fingerprints, 120 MB, arrive together.
FILES_PER_JOB = 16_384

Batches = Iterator["pa.RecordBatch"]
T = TypeVar("T")


class FileRecord(Protocol):
    """What a scan finds in a file: a dataclass that MessagePack can hold."""

    @property
    def uri(self) -> str:
        """The whole path of the file."""
        ...


R = TypeVar("R", bound=FileRecord)
R_co = TypeVar("R_co", bound=FileRecord, covariant=True)


class Measure(Protocol[R_co]):
    """What a scan measures."""

    @property
    def record(self) -> type[R_co]:
        """The class of the records."""
        ...

    def __call__(self, uri: str, content: OpenFile) -> R_co:
        """Measure a file of which nothing has been read."""
        ...

    def failure(self, uri: str, error: ImageError) -> R_co:
        """Return the record of a file that cannot be measured, or raise the error."""
        ...


@dataclass(frozen=True)
class Reader:
    """How tasks read the images."""

    opening: FileOpener
    # Whether an image that can no longer be cut is left out, instead of raising an error
    tolerant: bool = True
    isolation: IsolationPolicy = LATER  # When images are decoded in a process of their own first

    @classmethod
    def of(cls, spark: SparkSession, folder: str) -> Reader:
        """Return how tasks read the images in a folder, a whole path."""
        limit = python_limit_mb(spark.sparkContext.getConf().get, str(spark.sparkContext.master))
        return cls(choose_opening(spark, folder), isolation=IsolationPolicy(memory_mb=limit))


def run_in_batches(
    work: Callable[[Mapping[str, int], Reader], Sequence[T]],
    lengths: Mapping[str, int],
    reader: Reader,
    say: Say,
) -> Iterator[T]:
    """Scan files in jobs of at most `FILES_PER_JOB`, and yield their records.

    `lengths`: sizes of the files in bytes, by their whole paths.
    """
    uris = list(lengths)
    for start in range(0, len(uris), FILES_PER_JOB):
        some = {uri: lengths[uri] for uri in uris[start : start + FILES_PER_JOB]}
        yield from retry_isolated(partial(work, some), reader, say)


def retry_isolated(
    work: Callable[[Reader], T],
    reader: Reader,
    say: Say,
    undo: Callable[[], object] = lambda: None,
) -> T:
    """Do work on images; repeat it in isolation if a Python worker died in each attempt.

    Spark retries a task whose worker died, and a retry decodes its images in isolation. The master
    local[N] does not retry.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        with interrupts_first():
            return work(reader)
    except (Py4JJavaError, PySparkException) as error:
        if reader.isolation.always or spark_reason(error) != DIED:
            raise
    undo()
    say("a Python process died; each image is tried in a process of its own now ...")
    return work(replace(reader, isolation=replace(reader.isolation, always=True)))


def measure_files(
    spark: SparkSession, measure: Measure[R], lengths: Mapping[str, int], reader: Reader
) -> list[R]:
    """Open every file once, and return its record, sorted by path.

    `lengths`: sizes of the files in bytes, by their whole paths.
    """
    task = scan_task(measure, reader.opening, reader.isolation)
    files = _file_rows(spark, lengths, reader)
    with one_image_a_batch(spark):
        batches = files.mapInArrow(task, "record binary").toArrow().to_batches()
    records: list[R] = []
    # Fingerprints are the largest part of the driver's memory: no second copy of all of them.
    while batches:
        records += records_of(batches.pop(), measure.record)
    return sorted(records, key=lambda each: each.uri)


def records_of(batch: pa.RecordBatch, kind: type[R]) -> list[R]:
    """Return the records that a task of a scan has found."""
    return [msgspec.msgpack.decode(each, type=kind) for each in batch.column(0).to_pylist()]


def _plain(number: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    return number.item()


def scan_task(
    measure: Measure[Any], opening: FileOpener, isolation: IsolationPolicy = LATER
) -> Callable[[Batches], Batches]:
    """Return the function of a task of a scan."""

    def scan(batches: Batches) -> Batches:
        import pyarrow as pa

        use_one_thread()
        with isolation.trials() as trials:
            for batch in batches:
                records = [
                    _measure_row(row, opening, measure, trials, isolation)
                    for row in batch.to_pylist()
                ]
                stored = [msgspec.msgpack.encode(each, enc_hook=_plain) for each in records]
                yield pa.RecordBatch.from_arrays([pa.array(stored, pa.binary())], ["record"])

    return scan


def _measure_row(
    row: dict[str, Any],
    opening: FileOpener,
    measure: Measure[R],
    trials: DecodeSandbox | None,
    isolation: IsolationPolicy,
) -> R:
    try:
        if trials is not None:
            trials.survive(row["path"], _open_and_measure, row, opening, measure)
        with isolation.in_time():
            return _open_and_measure(row, opening, measure)
    except ImageError as error:
        return measure.failure(row["path"], error)


def _open_and_measure(row: dict[str, Any], opening: FileOpener, measure: Measure[R]) -> R:
    with content_of(row, opening) as content:
        return measure(row["path"], content)


def content_of(row: Mapping[str, Any], opening: FileOpener) -> OpenFile:
    """Open the file of a row; Spark has read it if it has a column ``content``."""
    return OpenFile.of(row["content"]) if "content" in row else opening.open(row["path"])


def _file_rows(spark: SparkSession, lengths: Mapping[str, int], reader: Reader) -> DataFrame:
    """Return files as rows, in tasks of about equal bytes."""
    import pyarrow as pa

    if reader.opening.kind == SPARK:
        return load_contents(spark, list(lengths)).select("path", "content")
    # All slots get several tasks.
    share = max(1.0, sum(lengths.values()) / (4 * task_slots(spark)))
    parts = chunk_by_size(list(lengths.values()), min(TASK_BYTES, share))
    keys = pa.array([partition_key(part) for part in parts], pa.int32())
    files = spark.createDataFrame(pa.table({"path": list(lengths), "key": keys}))
    return files.repartition(parts[-1] + 1, "key").select("path")


def assigned_rows(
    spark: SparkSession, rows: pa.Table, partitions: int, reader: Reader
) -> DataFrame:
    """Return rows about files in the tasks that they are assigned to, with the contents if needed.

    `rows`: they have the columns ``path``, ``key`` of the partition, and ``ordinal`` in it.
    """
    from pyspark.sql import functions as F

    work = spark.createDataFrame(rows)
    if reader.opening.kind == SPARK:
        paths = list(dict.fromkeys(rows["path"].to_pylist()))
        contents = load_contents(spark, paths).select("path", "content")
        work = contents.join(F.broadcast(work), "path")
    return work.repartition(partitions, F.col("key")).sortWithinPartitions("ordinal")


def load_contents(spark: SparkSession, uris: Sequence[str]) -> DataFrame:
    """Return these files as ``path, modificationTime, length, content``, without missing ones."""
    from pyspark.errors import AnalysisException

    reader = spark.read.format("binaryFile")
    for option in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        reader = reader.option(option, "true")
    try:
        return reader.load([escaped(uri) for uri in uris])
    except AnalysisException:
        # The options are for files that disappear after this check of each path.
        storage = Storage(spark)
        there = [escaped(uri) for uri in uris if storage.exists(uri)]
        if len(there) == len(uris):
            raise
    if there:
        return reader.load(there)
    return spark.createDataFrame([], "path string, content binary")


def one_image_a_batch(spark: SparkSession) -> Any:
    """Pass images to Python one by one; the default is up to 10,000 in one piece of memory."""
    return settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"})


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """Change settings of the session for a while."""
    with ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(setting_of_session(spark, name, value))
        yield


def use_one_thread() -> None:
    """Keep OpenCV to the one core that a Spark task has."""
    import cv2

    cv2.setNumThreads(1)

"""The passes over the files that run on executors: look, read, fit and transform.

They are generators over Arrow batches. A task holds some image files (64, or 16 MB of them, or one
larger file) and one batch of rows of about 8 MB; with ``pca`` also twice the basis (see
`data_prep.ingest.transforms`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data_prep.images.crash_isolation import LATER
from data_prep.images.open_image import decode_image
from data_prep.ingest import cifar, idx
from data_prep.ingest.plan import IngestPlan, IngestTask, InputFile, look_at
from data_prep.ingest.resize import TargetSize
from data_prep.ingest.settings import CIFAR10, IDX, IMAGE_COLUMN, pixel_field
from data_prep.ingest.transforms import (
    COMPONENTS,
    PASSES,
    PCA_SHAPE,
    Floats,
    PixelMoments,
    Transform,
    first_columns,
    orthonormal,
    principal_components,
    through_covariance,
)
from data_prep.spark.passes import CHANGED, settings
from distkeras_grid.errors import ImageError
from distkeras_grid.feeding.arrays import features_from_arrow
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.groups import GROUP_COLUMN
from distkeras_grid.spark.partitions import partition_key
from distkeras_grid.spark.worker_jobs import limit_arrow_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

BATCH_ROWS = 64
BATCH_BYTES = 8 << 20
# Number of tasks whose sums the driver receives at once.
SUMMING_TASKS = 8

INPUT_SCHEMA = "uri string, sha256 string, shape array<int>, labels array<int>, pixel_sha256 string"
UNITS = (
    "path string, ordinal int, source string, split string, start int, stop int, "
    "labels array<int>, key int, sha256 string, group string"
)
# Name, Spark type, and content of each column; the image column precedes them.
COLUMNS = (
    ("label", "int", "number of the class"),
    ("label_name", "string", "name of the class"),
    ("source", "string", "path of the file below the input folder"),
    ("item", "int", "place of the image in its file"),
    ("split", "string", "train, validation or test"),
)
# A further column where images have groups; null for one without.
GROUP = (GROUP_COLUMN, "string", "what the image shows a part of, such as a specimen")

Batches = Iterator["pa.RecordBatch"]


@dataclass(frozen=True)
class ImageReading:
    """How files become rows."""

    kind: str
    look: TargetSize
    classes: tuple[str, ...]
    has_groups: bool = False  # Whether rows have the column `group`

    @property
    def columns(self) -> tuple[tuple[str, str, str], ...]:
        """The columns after that of the image."""
        return (*COLUMNS, GROUP) if self.has_groups else COLUMNS


@contextmanager
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Pass few rows at a time to Python; the default is up to 10,000 in one piece of memory."""
    few = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS)}
    with settings(spark, few), limit_arrow_batch(spark):
        yield


def find_files(files: DataFrame, kind: str) -> list[InputFile]:
    """Look at every file; return them sorted by path."""
    rows = files.select("path", "content").mapInArrow(_looker(kind), INPUT_SCHEMA).collect()
    inputs = [
        InputFile(row.uri, row.sha256, tuple(row.shape), tuple(row.labels), row.pixel_sha256)
        for row in rows
    ]
    return sorted(inputs, key=lambda each: each.uri)


def _looker(kind: str) -> Callable[[Batches], Batches]:
    def look(batches: Batches) -> Batches:
        import pyarrow as pa

        whole = pa.list_(pa.int32())
        text = pa.string()
        kinds = {"uri": text, "sha256": text, "shape": whole, "labels": whole, "pixel_sha256": text}
        schema = pa.schema(list(kinds.items()))
        with LATER.trials() as trials:
            for batch in batches:
                for row in batch.to_pylist():
                    file = (row["path"], row["content"], kind)
                    if trials is not None:
                        # If an image crashes its decoder, the error names it.
                        trials.survive(row["path"], look_at, *file)
                    yield pa.RecordBatch.from_pylist([vars(look_at(*file))], schema)

    return look


def read_rows(
    spark: SparkSession, files: DataFrame, plan: IngestPlan, reading: ImageReading
) -> DataFrame:
    """Return all rows with uint8 pixels, one partition for each task, in the plan's order."""
    from pyspark.sql import functions as F

    rows = [
        (
            *(unit.uri, ordinal, unit.source, unit.split, unit.start, unit.stop),
            *(list(unit.labels), partition_key(unit.partition), unit.sha256, unit.group),
        )
        for ordinal, unit in enumerate(plan.units)
    ]
    work = files.select("path", "content").join(
        F.broadcast(spark.createDataFrame(rows, UNITS)), "path"
    )
    return (
        work.repartition(plan.units[-1].partition + 1, F.col("key"))
        .sortWithinPartitions("ordinal")
        .mapInArrow(
            _reader(reading),
            spark_schema(pixel_field(reading.look, reading.classes), reading.columns),
        )
    )


def _reader(reading: ImageReading) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        import cv2

        cv2.setNumThreads(1)  # the one core that a Spark task has
        for batch in batches:
            for row in batch.to_pylist():
                yield from read_unit(row.pop("content"), row, reading)

    return read


def read_unit(content: bytes, row: dict[str, Any], reading: ImageReading) -> Batches:
    """Yield the rows of one unit.

    `content`: bytes of the unit's file.
    """
    unit = IngestTask(
        *(row["path"], row["source"], row["split"], row["start"], row["stop"]),
        *(tuple(row["labels"]), 0, row["sha256"], row["group"]),
    )
    if hashlib.sha256(content).hexdigest() != unit.sha256:
        raise ImageError(f"{unit.uri} {CHANGED}. Run it again.")
    at = unit.start
    for images in images_of(content, unit, reading):
        pixels = reading.look.apply(images, unit.uri)
        labels = unit.labels[at - unit.start : at - unit.start + len(pixels)]
        yield record_batch(pixels, labels, unit, at, reading)
        at += len(pixels)


def images_of(content: bytes, unit: IngestTask, reading: ImageReading) -> Iterator[NDArray[Any]]:
    """Yield the images of a unit as they are in its file, some at a time.

    Shape of the result: (n, height, width, 1 or 3).
    """
    if reading.kind == IDX:
        size = int(np.prod(idx.idx_shape(content, unit.uri)[1:]))
        step = max(1, BATCH_BYTES // max(size, reading.look.height * reading.look.width))
        for items in idx.iter_idx(content, unit.uri, unit.start, unit.stop, step):
            yield items if items.ndim == 4 else items[..., np.newaxis]
    elif reading.kind == CIFAR10:
        images, _ = cifar.read_cifar(content, unit.uri)
        step = max(1, BATCH_BYTES // (3 * max(reading.look.height, cifar.SIDE) ** 2))
        for start in range(unit.start, unit.stop, step):
            yield images[start : min(start + step, unit.stop)]
    else:
        yield decode_image(content, unit.uri)[np.newaxis]


def record_batch(
    pixels: NDArray[np.uint8],
    labels: tuple[int, ...],
    unit: IngestTask,
    at: int,
    reading: ImageReading,
) -> pa.RecordBatch:
    """Return images of one file, from item `at` on, as rows."""
    import pyarrow as pa

    rows = len(pixels)
    arrays = [
        pa.array([image.tobytes() for image in pixels], pa.binary()),
        pa.array(labels, pa.int32()),
        pa.array([reading.classes[label] for label in labels], pa.string()),
        pa.array([unit.source] * rows, pa.string()),
        pa.array(range(at, at + rows), pa.int32()),
        pa.array([unit.split] * rows, pa.string()),
    ]
    if reading.has_groups:
        arrays.append(pa.array([unit.group] * rows, pa.string()))
    names = [IMAGE_COLUMN, *(name for name, _, _ in reading.columns)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def spark_schema(field: Field, columns: Sequence[tuple[str, str, str]]) -> StructType:
    """Return the Spark schema; the image column carries `field` in its metadata."""
    from pyspark.sql import types

    kinds = {"int": types.IntegerType(), "string": types.StringType()}
    first = types.StructField(
        IMAGE_COLUMN, types.BinaryType(), nullable=False, metadata=field.to_metadata()
    )
    others = [
        types.StructField(
            name, kinds[kind], nullable=name == GROUP_COLUMN, metadata={"comment": comment}
        )
        for name, kind, comment in columns
    ]
    return types.StructType([first, *others])


def fit(
    spark: SparkSession,
    train: DataFrame,
    look: TargetSize,
    *,
    standardise: bool,
    pca: bool,
    slots: int,
) -> Transform:
    """Fit the transform to the rows of the training split."""
    images = train.select(IMAGE_COLUMN).coalesce(min(slots, SUMMING_TASKS))
    field = pixel_field(look)
    sums = _sums(images, field, partial(_moments, size=field.size))
    moments = PixelMoments.added([PixelMoments.from_vector(np.frombuffer(each)) for each in sums])
    mean = moments.mean()
    if not pca:
        return Transform(mean, None, moments.deviation(), look.shape)
    passed = first_columns(field.size, moments.count, COMPONENTS)
    for _ in range(PASSES):
        basis = orthonormal(passed)
        shared = spark.sparkContext.broadcast(basis)
        sums = _sums(images, field, partial(_passed, mean=mean, basis=shared))
        shared.destroy()
        passed = np.zeros_like(basis)
        for each in sums:
            passed += np.frombuffer(each, np.float32).reshape(basis.shape)
    components, deviations = principal_components(basis, passed, moments.count, COMPONENTS)
    return Transform(mean, components, deviations if standardise else None, PCA_SHAPE)


def _sums(
    images: DataFrame, field: Field, add: Callable[[Iterable[NDArray[Any]]], NDArray[Any]]
) -> list[bytes]:
    """Return, for each task, the bytes of the result of `add` on its batches."""

    def work(batches: Batches) -> Batches:
        import pyarrow as pa

        total = add(features_from_arrow(batch.column(0), field) for batch in batches)
        yield pa.RecordBatch.from_arrays([pa.array([total.tobytes()], pa.binary())], ["sum"])

    return [bytes(row[0]) for row in images.mapInArrow(work, "sum binary").collect()]


def _moments(batches: Iterable[NDArray[np.uint8]], size: int) -> NDArray[np.float64]:
    return PixelMoments.of(batches, size).to_vector()


def _passed(batches: Iterable[NDArray[np.uint8]], mean: Floats, basis: Any) -> Floats:
    return through_covariance(batches, mean, basis.value)


def transform_rows(
    rows: DataFrame, reading: ImageReading, transform: Transform, field: Field
) -> DataFrame:
    """Return the rows with transformed pixels."""
    shared = rows.sparkSession.sparkContext.broadcast(transform)
    pixels = pixel_field(reading.look)

    def work(batches: Batches) -> Batches:
        import pyarrow as pa

        for batch in batches:
            values = shared.value.apply(features_from_arrow(batch.column(0), pixels))
            images = pa.array([image.tobytes() for image in values], pa.binary())
            yield pa.RecordBatch.from_arrays([images, *batch.columns[1:]], names=batch.schema.names)

    return rows.mapInArrow(work, spark_schema(field, reading.columns))

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

import msgspec
import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.schema import schema_of
from data_prep.images.file_access import FileOpener, OpenFile
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
from data_prep.spark.scan import (
    CHANGED,
    Batches,
    Reader,
    assigned_rows,
    content_of,
    settings,
    use_one_thread,
)
from distkeras_grid.errors import ImageError
from distkeras_grid.feeding.arrays import features_from_arrow
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import GROUP_COLUMN
from distkeras_grid.spark.partitions import partition_key
from distkeras_grid.spark.worker_jobs import limit_arrow_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 64
BATCH_BYTES = 8 << 20
# Number of tasks whose sums the driver receives at once.
SUMMING_TASKS = 8

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


@dataclass(frozen=True)
class FileMeasure:
    """What the scan measures in a file of a format: only what the plan needs is decoded."""

    kind: str

    record = InputFile

    def __call__(self, uri: str, content: OpenFile) -> InputFile:
        """Return what is in a file."""
        return look_at(uri, content.read(), self.kind)

    def failure(self, uri: str, error: ImageError) -> InputFile:  # noqa: ARG002
        """End the ingest: no image is left out."""
        raise error


def read_rows(
    spark: SparkSession, plan: IngestPlan, reader: Reader, reading: ImageReading
) -> DataFrame:
    """Return all rows with uint8 pixels, one partition for each task, in the plan's order."""
    import pyarrow as pa

    table = pa.table(
        {
            "path": [unit.uri for unit in plan.units],
            "key": pa.array([partition_key(unit.partition) for unit in plan.units], pa.int32()),
            "ordinal": pa.array(range(len(plan.units)), pa.int32()),
            "task": [msgspec.json.encode(unit).decode() for unit in plan.units],
        }
    )
    return assigned_rows(spark, table, plan.units[-1].partition + 1, reader).mapInArrow(
        _read_task(reader.opening, reading),
        schema_of(pixel_field(reading.look, reading.classes), reading.columns, [GROUP_COLUMN]),
    )


def _read_task(opening: FileOpener, reading: ImageReading) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        use_one_thread()
        for row in (row for batch in batches for row in batch.to_pylist()):
            unit = msgspec.json.decode(row["task"], type=IngestTask)
            with content_of(row, opening) as content:
                yield from read_unit(content.read(), unit, reading)

    return read


def read_unit(content: bytes, unit: IngestTask, reading: ImageReading) -> Batches:
    """Yield the rows of one unit.

    `content`: bytes of the unit's file.
    """
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
    labels: Sequence[int],
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
    moments = PixelMoments(np.sum([np.frombuffer(each) for each in sums], axis=0))
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
    return PixelMoments.of(batches, size).sums


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

    return rows.mapInArrow(work, schema_of(field, reading.columns, [GROUP_COLUMN]))

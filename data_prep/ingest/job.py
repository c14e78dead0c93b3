"""The ingest job: look, plan, read, write, count, then publish."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from dataclasses import field as described
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from data_prep.dataset.schema import ARROW_TYPES, IMAGE_COLUMN, schema_of
from data_prep.images.content_hash import pixel_digest
from data_prep.images.file_access import FileOpener, OpenFile
from data_prep.images.open_image import decode_image
from data_prep.images.plane_selection import Pixels, as_channels
from data_prep.ingest.plan import IngestPlan, InputFile, PlannedImage, make_plan
from data_prep.ingest.settings import IngestSettings
from data_prep.spark.discovery import InputFolder, find_images
from data_prep.spark.driver import (
    executor_errors,
    relative_to,
    scan_files,
    summarize_errors,
    tiling_versions,
)
from data_prep.spark.passes import write_tiles
from data_prep.spark.progress import task_progress
from data_prep.spark.scan import (
    CHANGED,
    Batches,
    Reader,
    assigned_rows,
    content_of,
    use_one_thread,
)
from data_prep.splits.labels import differing_by_case
from distkeras_grid.dataset.versions import FOLDER as VERSIONS
from distkeras_grid.dataset.versions import file_of
from distkeras_grid.errors import (
    ImageError,
    NoSpaceError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.progress import Say, format_bytes
from distkeras_grid.spark.atomic_output import Output, OutputKind
from distkeras_grid.spark.dataframes import GROUP_COLUMN
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors
from distkeras_grid.spark.partitions import partition_key
from distkeras_grid.spark.session import build_session, task_slots
from distkeras_grid.spark.storage import Storage, escaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION = 1
# How the data set was made. This file tells jobs that replace or add tiles that it holds none.
ORIGIN = "_ingest.json"
IMAGES = OutputKind("data set of images", file_of(0), (VERSIONS, "_SUCCESS", "split=*", ORIGIN))
# Name, Spark type, and content of each column; the image column precedes them.
COLUMNS = (
    ("label", "int", "number of the class"),
    ("label_name", "string", "name of the class"),
    ("source", "string", "path of the file below the input folder"),
    # Tells an evaluation that a row is a whole image.
    ("item", "int", "place of the image in its file: 0"),
    ("split", "string", "train, validation or test"),
)
# A further column where images have groups; null for one without.
GROUP = (GROUP_COLUMN, "string", "what the image shows a part of, such as a specimen")


@dataclass(frozen=True)
class IngestResult:
    """The result of an ingest."""

    manifest: dict[str, Any] = described(repr=False)  # The content of ``_versions/0.json``
    # Why something below the input could not be looked at, by path: folders that cannot be opened,
    # links whose target is not there, and names that are not UTF-8
    left_out: dict[str, str]


@dataclass(frozen=True)
class FileMeasure:
    """What the scan measures in a file: digests."""

    record = InputFile

    def __call__(self, uri: str, content: OpenFile) -> InputFile:
        """Return what is in a file."""
        stored = content.read()
        pixels = decode_image(stored, uri)
        return InputFile(uri, hashlib.sha256(stored).hexdigest(), pixel_digest(pixels))

    def failure(self, uri: str, error: ImageError) -> InputFile:  # noqa: ARG002
        """End the ingest: no image is left out."""
        raise error


def ingest_images(
    settings: IngestSettings, *, spark: SparkSession | None = None, say: Say = lambda _: None
) -> IngestResult:
    """Convert labelled images to the Parquet files that trainers read.

    The data set appears whole at the end, under its name: Parquet files in one folder for each
    split (``split=train`` ...); ``_versions/0.json``, which says what it holds; and
    ``_ingest.json``, which says how it was made. After an error nothing is left behind.

    Parameters
    ----------
    settings : IngestSettings
    spark : SparkSession, optional
        Default: the running session, or a new local one.
    say : callable, optional
        Receives progress lines.

    Returns
    -------
    IngestResult

    Raises
    ------
    PathNotFoundError
        If the input folder is not there.
    DataError, LabelError, SplitLeakError, EmptySplitError
        If the files or the labels cannot be used.
    NoSpaceError
        If the rows might not fit.
    OutputExistsError
        If something is in the output folder.

    Examples
    --------
    >>> from data_prep.ingest import IngestSettings
    >>> settings = IngestSettings("photos", "hdfs:///photos", size=128)
    >>> ingest_images(settings, say=print).manifest["rows"]              # doctest: +SKIP
    5000
    """
    session = spark or build_session("distkeras_grid ingest")
    check_executors(session, TILING_PACKAGES)
    storage = Storage(session)
    if not storage.exists(settings.input):
        raise PathNotFoundError(f"There is no input folder {settings.input}. Check the path.")
    output = Output(storage, settings.output, IMAGES)
    output.check(settings.input)
    with executor_errors(session, settings.input, "the ingest of"):
        images = find_images(session, storage, settings)
        unseen, inputs = images.unseen, _look(session, images, settings, say)
        plan = _plan(storage, inputs, settings, task_slots(session), say)
        left_out = plan.left_out | unseen
        for source, reason in sorted(left_out.items()):
            say(f"  left out: {source}: {reason}")
        field = settings.field(plan.classes)
        _check_space(plan, field, storage.free_space(settings.output), settings.output)
        with output.writing() as temporary:
            with task_progress(session, "writing", say):
                rows = _read_rows(session, plan, images.reader, field)
                write_tiles(session, rows, field, temporary)
            _check_written(session, plan, temporary)
            origin = {
                "settings": asdict(settings),
                "left_out": left_out,
                "versions": tiling_versions(),
            }
            manifest = _manifest(plan, field)
            for name, content in ((ORIGIN, origin), (file_of(0), manifest)):
                storage.write_text(f"{temporary}/{name}", json.dumps(content, indent=1) + "\n")
    say(f"wrote {len(plan.images):,} images to {settings.output}")
    return IngestResult(manifest, unseen)


def _look(
    spark: SparkSession, images: InputFolder, settings: IngestSettings, say: Say
) -> list[InputFile]:
    """Return what is in the files, sorted by path; all must be readable."""
    if images.broken:
        raise ImageError(f"{summarize_errors(images.broken)} Nothing was written.")
    inputs = scan_files(spark, FileMeasure(), images.lengths, images.reader, settings.input, say)
    if gone := images.lengths.keys() - inputs.keys():
        raise ImageError(f"{min(gone)} is gone, or cannot be read. Nothing was written.")
    return [inputs[uri] for uri in sorted(inputs)]


def _plan(
    storage: Storage, inputs: list[InputFile], settings: IngestSettings, slots: int, say: Say
) -> IngestPlan:
    below = relative_to(storage.resolve(settings.input))
    plan = make_plan(inputs, settings, below, storage.read_text, slots)
    for split, by_class in plan.counts.items():
        text = ", ".join(f"{name} {rows:,}" for name, rows in by_class.items())
        say(f"  {split}: {sum(by_class.values()):,} images: {text}")
    groups = {each.group for each in plan.images if each.group}
    for line in differing_by_case("classes", plan.classes) + differing_by_case("groups", groups):
        say(line)
    return plan


def _check_space(plan: IngestPlan, field: Field, free: int, output: str) -> None:
    """Refuse if the rows might not fit, even without any compression by Parquet."""
    needed = len(plan.images) * field.nbytes
    if needed > free:
        raise NoSpaceError(
            f"{len(plan.images):,} images of {format_bytes(field.nbytes)} need up to "
            f"{format_bytes(needed)}, and {output} has {format_bytes(free)} free. Take a smaller "
            "--size, or another output."
        )


def _read_rows(spark: SparkSession, plan: IngestPlan, reader: Reader, field: Field) -> DataFrame:
    """Return all rows, one partition for each task, in the plan's order."""
    import pyarrow as pa

    images = plan.images
    columns = (*COLUMNS, GROUP) if plan.has_groups else COLUMNS
    table = pa.table(
        {
            "path": [each.uri for each in images],
            "key": pa.array([partition_key(each.partition) for each in images], pa.int32()),
            "ordinal": pa.array(range(len(images)), pa.int32()),
            "image": [msgspec.json.encode(each).decode() for each in images],
        }
    )
    work = assigned_rows(spark, table, images[-1].partition + 1, reader)
    kinds = [(name, kind) for name, kind, _ in columns]
    return work.mapInArrow(
        read_task(reader.opening, field, kinds), schema_of(field, columns, [GROUP_COLUMN])
    )


def read_task(
    opening: FileOpener, field: Field, kinds: list[tuple[str, str]]
) -> Callable[[Batches], Batches]:
    """Return the function of a task: it turns planned images into rows.

    `kinds`: names and types of the columns after that of the image.
    """

    def read(batches: Batches) -> Batches:
        import pyarrow as pa

        use_one_thread()
        for row in (row for batch in batches for row in batch.to_pylist()):
            image = msgspec.json.decode(row["image"], type=PlannedImage)
            with content_of(row, opening) as content:
                stored = content.read()
            if hashlib.sha256(stored).hexdigest() != image.sha256:
                raise ImageError(f"{image.uri} {CHANGED}. Run it again.")
            pixels = resized(decode_image(stored, image.uri), field.shape, image.uri)
            values = asdict(image) | {"label_name": field.classes[image.label], "item": 0}
            arrays = [pa.array([values[name]], ARROW_TYPES.get(kind, kind)) for name, kind in kinds]
            names = [IMAGE_COLUMN, *(name for name, _ in kinds)]
            yield pa.record_batch([pa.array([pixels.tobytes()], pa.binary()), *arrays], names)

    return read


def resized(image: Pixels, shape: tuple[int, ...], name: str) -> Pixels:
    """Return an image with this height, width and number of channels; it is stretched to them.

    It is converted to gray before it is resized. Where it shrinks, areas are averaged; where it
    grows, cubic interpolation is used.

    Examples
    --------
    >>> resized(np.full((4, 6, 3), 7, np.uint8), (2, 3, 1), "a.png").shape
    (2, 3, 1)
    """
    import cv2

    if image.dtype != np.uint8:
        raise ImageError(f"{name} has 16 bits a channel. Save it with 8 bits.")
    height, width, channels = shape
    image = np.ascontiguousarray(as_channels(image, channels))
    if image.shape[:2] != (height, width):
        shrinks = image.shape[0] * image.shape[1] > height * width
        how = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
        image = cv2.resize(image, (width, height), None, 0, 0, how).reshape(shape)
    return image


def _check_written(spark: SparkSession, plan: IngestPlan, folder: str) -> None:
    """Count the rows that were written; the counts must be those of the plan."""
    rows = spark.read.parquet(escaped(folder)).groupBy("split", "label_name").count().collect()
    written = {(row["split"], row["label_name"]): row["count"] for row in rows}
    planned = {
        (split, name): count
        for split, by_class in plan.counts.items()
        for name, count in by_class.items()
        if count
    }
    if written != planned:
        raise StorageError(
            f"{sum(written.values()):,} images were written and {len(plan.images):,} planned. Run "
            "the job again."
        )


def _manifest(plan: IngestPlan, field: Field) -> dict[str, Any]:
    return {
        "version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "image": field.to_metadata(),
        "classes": list(plan.classes),
        "rows": len(plan.images),
        "counts": plan.counts,
    }

"""The ingest job on the driver: look, plan, read, fit, write, count, then publish."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import field as described
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from data_prep.ingest.plan import IngestPlan, InputFile, make_plan
from data_prep.ingest.settings import IngestSettings
from data_prep.ingest.stages import (
    FileMeasure,
    ImageReading,
    fit,
    read_rows,
    small_batches,
    transform_rows,
)
from data_prep.spark.discovery import InputFolder, find_images
from data_prep.spark.driver import (
    executor_errors,
    relative_to,
    scan_files,
    summarize_errors,
    tiling_versions,
)
from data_prep.spark.passes import write_splits
from data_prep.spark.progress import task_progress
from data_prep.splits.assign import SPLITS
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
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors
from distkeras_grid.spark.session import build_session, task_slots
from distkeras_grid.spark.storage import Storage, escaped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1
TRAIN = SPLITS[0]
# How the data set was made. This file tells jobs that replace or add tiles that it holds none.
ORIGIN = "_ingest.json"
# The transform, where pixels were transformed.
TRANSFORM = "_transform.npz"
IMAGES = OutputKind(
    "data set of images", file_of(0), (VERSIONS, "_SUCCESS", "split=*", ORIGIN, TRANSFORM)
)


@dataclass(frozen=True)
class IngestResult:
    """The result of an ingest."""

    manifest: dict[str, Any] = described(repr=False)  # The content of ``_versions/0.json``
    # Why something below the input could not be looked at, by path: folders that cannot be opened,
    # links whose target is not there, and names that Spark hides
    left_out: dict[str, str]


def ingest_images(
    settings: IngestSettings, *, spark: SparkSession | None = None, say: Say = lambda _: None
) -> IngestResult:
    """Convert labelled images to the Parquet files that trainers read.

    The data set appears whole at the end, under its name: Parquet files in one folder for each
    split (``split=train`` ...); ``_versions/0.json``, which says what it holds; ``_ingest.json``,
    which says how it was made; and ``_transform.npz`` where pixels were standardised or
    projected. After an error nothing is left behind.

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
        If the input folder or a file of the format is not there.
    DataError, LabelError, SplitLeakError, EmptySplitError
        If the files or the labels cannot be used.
    NoSpaceError
        If the rows might not fit.
    OutputExistsError
        If something is in the output folder.

    Examples
    --------
    >>> from data_prep.ingest import IngestSettings
    >>> settings = IngestSettings("idx", "fashion-mnist", "hdfs:///fashion")
    >>> ingest_images(settings, say=print).manifest["rows"]              # doctest: +SKIP
    70000
    """
    from pyspark import StorageLevel

    session = spark or build_session("distkeras_grid ingest")
    check_executors(session, TILING_PACKAGES)
    storage = Storage(session)
    if not storage.exists(settings.input):
        raise PathNotFoundError(f"There is no input folder {settings.input}. Check the path.")
    output = Output(storage, settings.output, IMAGES)
    output.check(settings.input)
    with (
        executor_errors(session, settings.input, "the ingest of"),
        small_batches(session),
        ExitStack() as stack,
    ):
        images = find_images(session, storage, settings)
        hidden, inputs = images.hidden, _look(session, images, settings, say)
        plan = _plan(storage, inputs, settings, task_slots(session), say)
        for source, reason in sorted((plan.left_out | hidden).items()):
            say(f"  left out: {source}: {reason}")
        look = settings.look(plan.shape)
        reading = ImageReading(settings.format, look, plan.classes, plan.has_groups)
        field = settings.field(look, plan.classes)
        _check_space(plan, field, storage.free_space(settings.output), settings.output)
        rows = read_rows(session, plan, images.reader, reading)
        transform = None
        if settings.transforms:
            # They are read several times.
            rows = rows.persist(StorageLevel.DISK_ONLY)
            stack.callback(rows.unpersist)
            say("fitting to the training split ...")
            with task_progress(session, "fitting", say):
                transform = fit(
                    *(session, rows.where(f"split = '{TRAIN}'"), look),
                    standardise=settings.standardise,
                    pca=settings.pca,
                    slots=task_slots(session),
                )
            rows = transform_rows(rows, reading, transform, field)
        temporary = stack.enter_context(output.writing())
        with task_progress(session, "writing", say):
            write_splits(session, rows, field, temporary)
        _check_written(session, plan, temporary)
        if transform is not None:
            storage.write_bytes(f"{temporary}/{TRANSFORM}", transform.to_bytes())
        storage.write_text(f"{temporary}/{ORIGIN}", _origin(settings, plan.left_out | hidden))
        manifest = _manifest(plan, field)
        storage.write_text(f"{temporary}/{file_of(0)}", json.dumps(manifest, indent=1) + "\n")
    say(f"wrote {plan.rows:,} images to {settings.output}")
    return IngestResult(manifest, hidden)


def _look(
    spark: SparkSession, images: InputFolder, settings: IngestSettings, say: Say
) -> list[InputFile]:
    """Return what is in the files, sorted by path; all must be readable."""
    if images.broken:
        raise ImageError(f"{summarize_errors(images.broken)} Nothing was written.")
    measure = FileMeasure(settings.format)
    inputs = scan_files(spark, measure, images.lengths, images.reader, settings.input, say)
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
    groups = {unit.group for unit in plan.units if unit.group}
    for line in differing_by_case("classes", plan.classes) + differing_by_case("groups", groups):
        say(line)
    return plan


def _check_space(plan: IngestPlan, field: Field, free: int, output: str) -> None:
    """Refuse if the rows might not fit, even without any compression by Parquet."""
    needed = plan.rows * field.nbytes
    if needed > free:
        raise NoSpaceError(
            f"{plan.rows:,} images of {format_bytes(field.nbytes)} need up to "
            f"{format_bytes(needed)}, and {output} has {format_bytes(free)} free. Take a smaller "
            "--size, or another output."
        )


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
            f"{sum(written.values()):,} images were written and {plan.rows:,} planned. Run the job "
            "again."
        )


def _origin(settings: IngestSettings, left_out: dict[str, str]) -> str:
    content = {
        "settings": settings.to_json(),
        "left_out": left_out,
        "versions": tiling_versions(),
    }
    return json.dumps(content, indent=1) + "\n"


def _manifest(plan: IngestPlan, field: Field) -> dict[str, Any]:
    return {
        "version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "image": field.to_metadata(),
        "classes": list(plan.classes),
        "rows": plan.rows,
        "counts": plan.counts,
    }

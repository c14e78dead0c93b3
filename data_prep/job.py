"""The tiling job, as the driver runs it: look, plan, cut, check, and only then publish."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from data_prep.geometry import count_tiles
from data_prep.labels import annotate, class_names
from data_prep.plan import Plan, PlannedSource, plan_units
from data_prep.progress import TaskProgress
from data_prep.schema import image_field
from data_prep.settings import TilingSettings
from data_prep.split import Source, assign_splits, check_leaks, originals
from data_prep.stages import Cutting, Inspected, inspect_images, tile_frame, write_tiles
from data_prep.tiles import group_by_base
from distkeras_grid import errors
from distkeras_grid.errors import (
    EmptyDataError,
    ImageError,
    NoSpaceError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.outputs import Output, OutputKind
from distkeras_grid.spark.session import (
    TILING_PACKAGES,
    build_session,
    check_executors,
    package_versions,
    task_slots,
)
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION = 1
MANIFEST = "_dataset.json"
TILES = OutputKind("data set of tiles", marker=MANIFEST, others=("_SUCCESS", "split=*"))
# Of many unreadable images so many are named in one error.
SHOWN_ERRORS = 5

Say = Callable[[str], object]


def tile_images(
    settings: TilingSettings, *, spark: SparkSession | None = None, say: Say = lambda _: None
) -> dict[str, Any]:
    """Cut all images below a folder into a data set of tiles.

    The data set appears whole at the end, under its name: Parquet files in one folder a split
    (``split=train`` ...) and ``_dataset.json``. After an error nothing is left behind, but for a
    complete data set that could not be given its name: a note of the error tells where it is.

    Parameters
    ----------
    settings : TilingSettings
    spark : SparkSession, optional
        Default: the running one, or a new local one.
    say : callable, optional
        Receives the lines that tell what goes on.

    Returns
    -------
    dict
        The content of ``_dataset.json``.

    Raises
    ------
    ConfigurationError, PathNotFoundError, OutputExistsError, NoSpaceError
        Before anything is written.
    EmptyDataError, ImageError, LabelError, SplitLeakError
        If the images are not fit for it.

    Examples
    --------
    >>> from data_prep import TileSpec, TilingSettings
    >>> tile_images(TilingSettings("images", "tiles", TileSpec(128)), say=print)  # doctest: +SKIP
    """
    session = spark or build_session("distkeras_grid tiling")
    check_executors(session, TILING_PACKAGES)
    storage = Storage(session)
    if not storage.exists(settings.input):
        raise PathNotFoundError(f"there is no input folder {settings.input}; check the path")
    output = Output(storage, settings.output, TILES, overwrite=settings.overwrite)
    output.check(settings.input)
    images = _images(session, settings)
    plan, field = make_plan(session, storage, images, settings, say)
    free = storage.free_space(settings.output)
    for line in plan.describe(free):
        say(line)
    plan.check_space(free, settings.output)
    with output.writing() as temporary, _executor_errors(settings.output):
        units = plan_units(
            plan, [angles for _, angles in group_by_base(settings.spec.angles)], task_slots(session)
        )
        cutting = _cutting(settings)
        tiles = tile_frame(session, images, units, field, cutting)
        with TaskProgress(session, "cutting", say):
            write_tiles(session, tiles, field, temporary)
        _check_written(session, temporary, plan)
        manifest = _manifest(settings, plan, field)
        storage.write_text(f"{temporary}/{MANIFEST}", json.dumps(manifest, indent=1) + "\n")
    say(f"wrote {plan.tiles:,} tiles to {settings.output}")
    return manifest


def make_plan(
    spark: SparkSession, storage: Storage, images: DataFrame, settings: TilingSettings, say: Say
) -> tuple[Plan, Field]:
    """Inspect, label and split all images.

    Parameters
    ----------
    spark : SparkSession
    storage : Storage
    images : DataFrame
        With the columns ``path`` and ``content``.
    settings : TilingSettings
    say : callable

    Returns
    -------
    plan : Plan
    field : Field
        Of the image column.
    """
    found = _inspect(spark, storage, images, settings, say)
    good, left_out = _screen(found, settings.on_error)
    channels, dtype = _common_format(good)
    said = annotate(list(good), settings.labels, storage.read_text, settings.group)
    sources = [
        Source(path, each.sha256, said[path].label, said[path].group, said[path].split)
        for path, each in good.items()
    ]
    splits = assign_splits(sources, settings.fractions, settings.seed)
    first = originals(sources)
    for source in sources:
        if first[source.sha256] is not source:
            left_out[source.path] = f"the same bytes as {first[source.sha256].path}"
    planned = tuple(
        _planned(source, good[source.path], splits[source.path], settings)
        for source in sorted(first.values(), key=lambda source: source.path)
    )
    check_leaks((each.split, each.sha256, each.group) for each in planned)
    classes = class_names([source.label for source in sources])
    field = image_field(settings.spec, channels, dtype, settings.encoding, classes)
    angles = len(list(settings.spec.angles))
    return Plan(planned, classes, angles, field.nbytes, left_out), field


def _inspect(
    spark: SparkSession, storage: Storage, images: DataFrame, settings: TilingSettings, say: Say
) -> dict[str, Inspected]:
    """Return what every image is, by its path below the input folder."""
    say(f"looking at the images in {settings.input} ...")
    with _executor_errors(settings.input), TaskProgress(spark, "looking", say):
        found = inspect_images(spark, images, _cutting(settings))
    if not found:
        raise EmptyDataError(
            f"no file below {settings.input} matches {settings.file_glob}; check the folder, or "
            "give --glob"
        )
    root = storage.resolve(settings.input).rstrip("/")
    # A file given as the input has no path below it.
    return {each.uri.removeprefix(root).lstrip("/") or each.uri: each for each in found}


def _screen(
    found: dict[str, Inspected], on_error: str
) -> tuple[dict[str, Inspected], dict[str, str]]:
    """Return the images that can be tiled, and why the others cannot."""
    good = {path: each for path, each in found.items() if each.error is None}
    reasons = {path: each.error for path, each in found.items() if each.error is not None}
    if reasons and (on_error == "fail" or not good):
        shown = "; ".join(reasons[path] for path in sorted(reasons)[:SHOWN_ERRORS])
        more = len(reasons) - SHOWN_ERRORS
        raise ImageError(
            f"{len(reasons)} of {len(found)} images cannot be tiled: {shown}"
            + (f"; and {more} more" if more > 0 else "")
            + ". Nothing was written."
        )
    return good, reasons


def _planned(
    source: Source, found: Inspected, split: str, settings: TilingSettings
) -> PlannedSource:
    return PlannedSource(
        source=source.path,
        uri=found.uri,
        sha256=source.sha256,
        label=source.label,
        split=split,
        group=source.group,
        width=found.width,
        height=found.height,
        channels=found.channels,
        tiles=count_tiles(found.width, found.height, settings.spec),
        tile_bytes=found.tile_bytes,
    )


def _images(spark: SparkSession, settings: TilingSettings) -> DataFrame:
    return (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", settings.file_glob)
        .option("recursiveFileLookup", "true")
        .load(settings.input)
    )


def _cutting(settings: TilingSettings) -> Cutting:
    channels = None if settings.channels == "auto" else int(settings.channels)
    return Cutting(settings.spec, settings.encoding, settings.quality, channels)


def _common_format(found: dict[str, Inspected]) -> tuple[int, str]:
    """Return channels and dtype of all images, or say which differ."""
    formats: dict[tuple[int, str], list[str]] = {}
    for path, each in sorted(found.items()):
        formats.setdefault((each.channels, each.dtype), []).append(path)
    if len(formats) == 1:
        return next(iter(formats))
    described = "; ".join(
        f"{len(paths)} with {channels} channel{'s' * (channels > 1)} of {dtype}, such as {paths[0]}"
        for (channels, dtype), paths in formats.items()
    )
    one_dtype = len({dtype for _, dtype in formats}) == 1
    raise ImageError(
        f"the images differ: {described}. "
        + (
            "Make them gray by --channels 1, or colour by --channels 3."
            if one_dtype
            else "Convert them to one kind, or tile them apart by --glob."
        )
    )


@contextmanager
def _executor_errors(path: str) -> Iterator[None]:
    """Turn what Spark reports of a failed task into the error that the task raised."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        text = str(error)
        if "No space left on device" in text:
            raise NoSpaceError(
                f"the disk became full while {path} was written or tiles were on their way; free "
                "space there and in Spark's local folders (spark.local.dir)"
            ) from error
        ours = re.search(r"distkeras_grid\.errors\.(\w+): (.*)", text)
        if ours is None:
            raise
        kind = getattr(errors, ours.group(1), StorageError)
        raise kind(ours.group(2).strip()) from error


def _check_written(spark: SparkSession, output: str, plan: Plan) -> None:
    """Count what was written; it must be what was planned, each source in one split."""
    rows = spark.read.parquet(output).groupBy("split", "source_sha256").count().collect()
    check_leaks((row["split"], row["source_sha256"], None) for row in rows)
    written = Counter({row["source_sha256"]: row["count"] for row in rows})
    planned = Counter({source.sha256: source.tiles for source in plan.sources})
    if written != planned:
        raise StorageError(
            f"{written.total():,} tiles were written and {planned.total():,} planned; run the job "
            "again"
        )


def _manifest(settings: TilingSettings, plan: Plan, field: Field) -> dict[str, Any]:
    sources = [
        {
            "source": each.source,
            "status": "tiled",
            "sha256": each.sha256,
            "label": each.label,
            "split": each.split,
            "group": each.group,
            "width": each.width,
            "height": each.height,
            "channels": each.channels,
            "tiles": each.tiles,
        }
        for each in plan.sources
    ]
    sources += [
        {"source": path, "status": "left out", "reason": reason, "tiles": 0}
        for path, reason in sorted(plan.left_out.items())
    ]
    return {
        "version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "image": field.to_metadata(),
        "spec": settings.spec.to_json(),
        "settings": settings.to_json(),
        "classes": list(plan.classes),
        "tiles": plan.tiles,
        "counts": plan.counts,
        "sources": sources,
        "versions": package_versions(("distkeras_grid", "pyspark", *TILING_PACKAGES)),
    }

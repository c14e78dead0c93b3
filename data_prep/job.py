"""The tiling job, as the driver runs it: look, plan, cut, check, and only then publish."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from data_prep.alike import alike_among, describe, joining, to_json
from data_prep.cutting import Cutting
from data_prep.labels import annotate, class_names
from data_prep.likeness_store import FOLDER as LIKENESS
from data_prep.likeness_store import save_fingerprints
from data_prep.manifest import LEFT_OUT, Entry, build_manifest, planned_source, tiled_entry
from data_prep.plan import Plan, plan_units
from data_prep.publication import JOURNAL
from data_prep.schema import image_field
from data_prep.settings import TilingSettings
from data_prep.split import Source, assign_splits, check_cells, check_leaks, copies
from data_prep.stages import Inspected, inspect_images, tile_frame, write_tiles
from data_prep.task_status import task_progress
from data_prep.tiff_metadata import parse_length
from data_prep.tiles import group_by_base
from data_prep.zones import ZoneRules, read_zones
from distkeras_grid.errors import (
    EmptyDataError,
    ImageError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import MANIFEST
from distkeras_grid.spark.folds import FOLDER as FOLDS
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors, package_versions
from distkeras_grid.spark.launch import job_error, spark_reason
from distkeras_grid.spark.outputs import Output, OutputKind
from distkeras_grid.spark.session import build_session, task_slots
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TILES = OutputKind(
    "data set of tiles",
    marker=MANIFEST,
    others=("_SUCCESS", "split=*", "shard=*", JOURNAL, "_new-*.*", "_old-*.*", LIKENESS, FOLDS),
)
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
        raise PathNotFoundError(f"There is no input folder {settings.input}. Check the path.")
    output = Output(storage, settings.output, TILES, overwrite=settings.overwrite)
    output.check(settings.input)
    images = load_images(session, settings)
    plan, field = make_plan(session, storage, images, settings, say)
    free = storage.free_space(settings.output)
    for line in plan.describe(free):
        say(line)
    plan.check_space(free, settings.output)
    with output.writing() as temporary:
        cut_tiles(session, images, plan, field, settings, temporary, say)
        if settings.near_duplicates != "off":
            save_fingerprints(storage, temporary, plan.fingerprints)
        manifest = _manifest(settings, plan, field)
        storage.write_text(f"{temporary}/{MANIFEST}", json.dumps(manifest, indent=1) + "\n")
    say(f"wrote {plan.tiles:,} tiles to {settings.output}")
    return manifest


def cut_tiles(
    spark: SparkSession,
    images: DataFrame,
    plan: Plan,
    field: Field,
    settings: TilingSettings,
    folder: str,
    say: Say,
) -> None:
    """Cut what is planned, write it to a new folder, and count it.

    Parameters
    ----------
    spark : SparkSession
    images : DataFrame
        With the columns ``path`` and ``content``.
    plan : Plan
    field : Field
        The image column.
    settings : TilingSettings
    folder : str
    say : callable
    """
    groups = [angles for _, angles in group_by_base(settings.spec.angles)]
    units = plan_units(plan, groups, task_slots(spark))
    with executor_errors(spark, settings.output):
        tiles = tile_frame(spark, images, units, field, cutting_of(settings, Storage(spark)))
        with task_progress(spark, "cutting", say):
            write_tiles(spark, tiles, field, folder)
        check_written(
            spark, folder, Counter({source.sha256: source.tiles for source in plan.sources})
        )


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
        The image column.
    """
    found = look_at(spark, storage, images, settings, say)
    cutting_of(settings, storage).zones.check_files(found)
    good, left_out = _screen(found, settings.on_error)
    channels, dtype = common_format(good)
    said = annotate(list(good), settings.labels, storage.read_text, settings.group)
    sources = [
        Source(
            *(path, each.sha256, said[path].label, said[path].group, said[path].split),
            *(each.pixel_sha256, each.tiles),
        )
        for path, each in good.items()
    ]
    fingerprints = {each.content: each.fingerprint for each in good.values()}
    pairs = alike_among({source.path: source.content for source in sources}, fingerprints)
    links = joining(pairs, {}) if settings.near_duplicates == "join" else []
    splits = assign_splits(sources, settings.fractions, settings.seed, links=links)
    for line in describe(pairs, splits):
        say(line)
    if not (settings.allow_empty or any(source.split for source in sources)):
        check_cells(sources, splits, settings.fractions, links)
    left_out |= copies(sources)
    planned = tuple(
        planned_source(
            good[source.path],
            source.path,
            label=source.label,
            split=splits[source.path],
            group=source.group,
        )
        for source in sorted(sources, key=lambda source: source.path)
        if source.path not in left_out
    )
    check_leaks((each.split, each.content, each.group) for each in planned)
    classes = class_names([source.label for source in sources])
    bits = max(each.bits for each in good.values())
    field = image_field(settings.spec, channels, dtype, settings.encoding, classes, bits)
    angles = len(list(settings.spec.angles))
    plan = Plan(planned, classes, angles, field.nbytes, left_out, tuple(pairs), fingerprints)
    return plan, field


def look_at(
    spark: SparkSession, storage: Storage, images: DataFrame, settings: TilingSettings, say: Say
) -> dict[str, Inspected]:
    """Return what every image is, by its path below the input folder.

    Raises
    ------
    EmptyDataError
        If there is none.
    """
    say(f"looking at the images in {settings.input} ...")
    with executor_errors(spark, settings.input), task_progress(spark, "looking", say):
        cutting = cutting_of(settings, storage)
        found = inspect_images(spark, images, cutting)
    if not found:
        raise EmptyDataError(
            f"No file below {settings.input} matches {settings.file_glob}. Check the folder, or "
            "give --glob."
        )
    below = relative_to(storage.resolve(settings.input))
    return {below(each.uri): each for each in found}


def relative_to(root: str) -> Callable[[str], str]:
    """Return a function that gives the path of a file below a folder."""
    prefix = root.rstrip("/")
    # A file given as the input has no path below it.
    return lambda uri: uri.removeprefix(prefix).lstrip("/") or uri


def _screen(
    found: dict[str, Inspected], on_error: str
) -> tuple[dict[str, Inspected], dict[str, str]]:
    """Return the images that can be tiled, and why the others cannot."""
    good = {path: each for path, each in found.items() if each.error is None}
    reasons = {path: each.error for path, each in found.items() if each.error is not None}
    if reasons and (on_error == "fail" or not good):
        shown = " ".join(reasons[path] for path in sorted(reasons)[:SHOWN_ERRORS])
        more = len(reasons) - SHOWN_ERRORS
        raise ImageError(
            f"{len(reasons)} of {len(found)} images cannot be tiled: {shown}"
            + (f" And {more} more." if more > 0 else "")
            + " Nothing was written."
            + (" Leave such files out by --on-error skip." if good else "")
        )
    return good, reasons


def load_images(spark: SparkSession, settings: TilingSettings) -> DataFrame:
    """Return all files of the input folder: ``path, modificationTime, length, content``."""
    return (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", settings.file_glob)
        .option("recursiveFileLookup", "true")
        .load(settings.input)
    )


def cutting_of(settings: TilingSettings, storage: Storage) -> Cutting:
    """Return how tiles are made and stored; zones are read."""
    zones = read_zones(storage.read_text(settings.zones), settings.zones) if settings.zones else {}
    sizes = (settings.pixel_size, settings.source_pixel_size)
    pixel_size, source_pixel_size = (parse_length(size) if size else None for size in sizes)
    channels = None if settings.channels == "auto" else int(settings.channels)
    return Cutting(
        spec=settings.spec,
        encoding=settings.encoding,
        quality=settings.quality,
        channels=channels,
        choice=settings.choice,
        bits=settings.bits,
        pixel_size=pixel_size,
        source_pixel_size=source_pixel_size,
        zones=ZoneRules(zones, settings.bottom_strip),
        root=storage.resolve(settings.input),
        fingerprints=settings.near_duplicates != "off",
    )


def common_format(found: dict[str, Inspected]) -> tuple[int, str]:
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
def executor_errors(spark: SparkSession, path: str, doing: str = "tiling to") -> Iterator[None]:
    """Turn what Spark reports of a failed task into the error that the task raised."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        master = str(spark.sparkContext.master)
        raise job_error(f"{doing} {path}", spark_reason(error), master) from error


def check_written(spark: SparkSession, folder: str, expected: Counter[str]) -> None:
    """Count what was written; it must be what was planned, each source in one split.

    Parameters
    ----------
    spark : SparkSession
    folder : str
    expected : Counter
        Tiles by the digest of their source.

    Raises
    ------
    StorageError
        If another number was written.
    """
    rows = spark.read.parquet(folder).groupBy("split", "source_sha256").count().collect()
    check_leaks((row["split"], row["source_sha256"], None) for row in rows)
    written = Counter({row["source_sha256"]: row["count"] for row in rows})
    if written != expected:
        raise StorageError(
            f"{written.total():,} tiles were written and {expected.total():,} planned. Run the job "
            "again."
        )


def tiling_versions() -> dict[str, str | None]:
    """Return the versions of what cuts tiles."""
    return package_versions(("distkeras_grid", "pyspark", *TILING_PACKAGES))


def _manifest(settings: TilingSettings, plan: Plan, field: Field) -> dict[str, Any]:
    entries = [tiled_entry(each) for each in plan.sources]
    entries += [Entry(path, LEFT_OUT, reason=why) for path, why in plan.left_out.items()]
    manifest = build_manifest(settings, field, entries, tiling_versions())
    return {**manifest, "near_duplicates": to_json(plan.near_duplicates)}

"""The steps of a tiling job on the driver: look, cut, check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from data_prep.dataset.commit import PARTIAL
from data_prep.dataset.croissant import FILE as CROISSANT
from data_prep.dataset.hugging_face import CARD
from data_prep.dataset.plan import TilingPlan, plan_tasks, rows_of_a_file
from data_prep.dataset.readme_card import FILE as PAGE
from data_prep.dataset.settings import TilingSettings
from data_prep.geometry.filters import parse_filter
from data_prep.geometry.regions import ZoneRules, read_zones
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images.intensity import parse_normalising
from data_prep.images.tiff_metadata import parse_length
from data_prep.report.html import FOLDER as REPORTS
from data_prep.spark.passes import ImageScan, TileMeasure, tile_frame, write_tiles
from data_prep.spark.progress import task_progress
from data_prep.spark.scan import (
    Measure,
    R,
    Reader,
    measure_files,
    retry_isolated,
    run_in_batches,
)
from data_prep.splits.assign import check_leaks
from data_prep.splits.fingerprint_cache import FingerprintFile
from data_prep.splits.fingerprint_store import FOLDER as LIKENESS
from distkeras_grid.dataset.versions import FOLDER as VERSIONS
from distkeras_grid.dataset.versions import file_of, present_number
from distkeras_grid.errors import ImageError, StorageError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.progress import Say
from distkeras_grid.signals import interrupts_first
from distkeras_grid.spark.atomic_output import Output, OutputKind
from distkeras_grid.spark.interpreters import TILING_PACKAGES, package_versions
from distkeras_grid.spark.session import task_slots
from distkeras_grid.spark.storage import Storage, escaped
from distkeras_grid.spark.worker_jobs import job_error, spark_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TILES = OutputKind(
    "data set of tiles",
    marker=file_of(0),
    # A run that is killed while it describes a version leaves a hidden name.
    others=("shard=*", VERSIONS, REPORTS, LIKENESS, CARD, CROISSANT, PAGE, *PARTIAL),
    unfinished=("shard=*-*", VERSIONS),
    grows_by="add to it what it lacks (--update)",
)
# At most this many unreadable images are named in one error.
SHOWN_ERRORS = 5
# The schema is given, because a folder without rows has none.
COUNTED = "source_sha256 string, split string"
COUNTED_COLUMNS = ("split", "source_sha256")


def tiles_kind(present: int | None) -> OutputKind:
    """Return how a data set of tiles with this present version is recognized."""
    return TILES if present is None else replace(TILES, marker=file_of(present), unfinished=())


def check_output(storage: Storage, settings: TilingSettings) -> None:
    """Refuse an output that is or contains the input, or would replace something else."""
    overwrite = settings.overwrite or settings.update
    kind = tiles_kind(
        present_number(settings.output.rstrip("/"), storage.list_names, storage.exists)
    )
    output = Output(storage, settings.output, kind, overwrite=overwrite)
    output.check_existing(settings.input)


def cut_tiles(
    spark: SparkSession,
    plan: TilingPlan,
    reader: Reader,
    field: Field,
    settings: TilingSettings,
    folder: str,
    say: Say,
) -> tuple[dict[str, str], dict[str, int]]:
    """Cut the planned tiles, write them to a new folder, and count them.

    Return why images have no tiles, empty if nobody knows, and how many tiles the conditions
    dropped; both by digest of the file.
    """
    from data_prep.spark.image_reports import image_reports

    tasks = plan_tasks(plan, task_slots(spark))
    with executor_errors(spark, settings.output, "tiling to"):
        cutting = cutting_of(settings, Storage(spark))
        reports = image_reports(spark)

        def write(reader: Reader) -> None:
            tiles = tile_frame(spark, tasks, plan.scans, reader, field, cutting, reports)
            write_tiles(spark, tiles, field, folder, rows_of_a_file=rows_of_a_file(plan))

        with task_progress(spark, "cutting", say):
            retry_isolated(write, reader, say, lambda: Storage(spark).delete(folder))
        planned = Counter({str(source.sha256): source.tiles for source in plan.sources})
        dropped = {k: each for k, each in reports.value.items() if isinstance(each, int) and each}
        reasons = {k: each for k, each in reports.value.items() if isinstance(each, str)}
        expected = planned - Counter(dropped)
        missing = verify_row_counts(spark, folder, expected, tolerant=reader.tolerant)
        return {each: reasons.get(each, "") for each in missing}, dropped


def scan_images(
    spark: SparkSession,
    lengths: Mapping[str, int],
    reader: Reader,
    settings: TilingSettings,
    say: Say,
    shown: Collection[str],
    fingerprints: FingerprintFile,
) -> dict[str, ImageScan]:
    """Read images, and return what was found in each, by their whole paths.

    `lengths`: sizes of the files in bytes, by their whole paths.
    `fingerprints`: receives the fingerprints, by the digest of the pixels. What is returned has
    none.
    """

    def keep(scan: ImageScan) -> ImageScan:
        if scan.fingerprint:
            fingerprints.add(scan.pixel_sha256, scan.fingerprint)
        return replace(scan, fingerprint=b"")

    measure = TileMeasure(cutting_of(settings, Storage(spark)), frozenset(shown))
    return scan_files(spark, measure, lengths, reader, settings.input, say, keep)


def scan_files(
    spark: SparkSession,
    measure: Measure[R],
    lengths: Mapping[str, int],
    reader: Reader,
    folder: str,
    say: Say,
    keep: Callable[[R], R] = lambda record: record,
) -> dict[str, R]:
    """Scan the files of a folder, and return their records by whole path.

    `keep`: returns what is held of a record.
    """
    say(f"looking at the images in {folder} ...")
    looking = executor_errors(spark, folder, "looking at the images in")
    work = partial(measure_files, spark, measure)
    with looking, task_progress(spark, "looking", say):
        return {each.uri: keep(each) for each in run_in_batches(work, lengths, reader, say)}


def relative_to(root: str) -> Callable[[str], str]:
    """Return a function that gives the path of a file below a folder."""
    prefix = root.rstrip("/")
    # If the input is a single file, it has no path below the input.
    return lambda uri: uri.removeprefix(prefix).lstrip("/") or uri


def refuse_errors(scans: dict[str, ImageScan]) -> None:
    """Raise if an image cannot be tiled."""
    reasons = {path: each.error for path, each in scans.items() if each.error is not None}
    if reasons:
        good = len(reasons) < len(scans)
        advice = " Leave such files out by --on-error skip." if good else ""
        raise ImageError(
            f"{len(reasons)} of {len(scans)} images cannot be tiled: "
            f"{summarize_errors(reasons)} Nothing "
            f"was written.{advice}"
        )


def summarize_errors(reasons: Mapping[str, str]) -> str:
    """Return the first reasons in the order of paths, and how many more there are."""
    shown = " ".join(reasons[path] for path in sorted(reasons)[:SHOWN_ERRORS])
    more = len(reasons) - SHOWN_ERRORS
    return f"{shown} And {more:,} more." if more > 0 else shown


def cutting_of(settings: TilingSettings, storage: Storage) -> TilingConfig:
    """Return how tiles are made and stored; the zones are read."""
    zones = read_zones(storage.read_text(settings.zones), settings.zones) if settings.zones else {}
    sizes = (settings.pixel_size, settings.source_pixel_size)
    pixel_size, source_pixel_size = (parse_length(size) if size else None for size in sizes)
    channels = None if settings.channels == "auto" else int(settings.channels)
    return TilingConfig(
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
        max_pixels=settings.max_pixels,
        normalising=parse_normalising(settings.normalise),
        keep=parse_filter(settings.keep),
    )


def common_format(scans: dict[str, ImageScan]) -> tuple[int, str]:
    """Return channels and dtype of all images, or refuse a mixture."""
    formats: dict[tuple[int, str], list[str]] = {}
    for path, each in sorted(scans.items()):
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
def executor_errors(spark: SparkSession, path: str, doing: str) -> Iterator[None]:
    """Turn Spark's report of a failed task into the error that the task raised."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        with interrupts_first():
            yield
    except (Py4JJavaError, PySparkException) as error:
        master = str(spark.sparkContext.master)
        raise job_error(f"{doing} {path}", spark_reason(error), master) from error


def verify_row_counts(
    spark: SparkSession, folder: str, expected: Counter[str], *, tolerant: bool = False
) -> set[str]:
    """Count the tiles that were written, and check that each source is in one split.

    `tolerant`: whether a source may be missing as a whole.
    """
    tiles = spark.read.schema(COUNTED).parquet(escaped(folder))
    rows = tiles.groupBy(*COUNTED_COLUMNS).count().collect()
    check_leaks((row["split"], row["source_sha256"], None) for row in rows)
    written = Counter({row["source_sha256"]: row["count"] for row in rows})
    missing = set(expected) - set(written) if tolerant else set()
    planned = expected - Counter({digest: expected[digest] for digest in missing})
    if written != planned:
        raise StorageError(
            f"{written.total():,} tiles were written and {planned.total():,} planned. Run the job "
            "again."
        )
    return missing


def tiling_versions() -> dict[str, str | None]:
    """Return the versions of the packages that cut tiles."""
    return package_versions(("distkeras_grid", "pyspark", *TILING_PACKAGES))

"""A folder of images that somebody else has divided into splits, for the check of leaks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from data_prep.dataset.diff import precheck_files
from data_prep.dataset.settings import TilingSettings
from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.crash_isolation import DecodeSandbox, IsolationPolicy
from data_prep.images.file_access import SPARK, FileOpener, OpenFile, choose_opening
from data_prep.images.image_stats import survey
from data_prep.images.multifile_images import refuse_folders
from data_prep.images.open_image import open_image
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark.discovery import list_images, unseen_images, walked
from data_prep.spark.driver import executor_errors, load_contents, run_in_batches
from data_prep.spark.passes import Reader, content_of, image_rows, one_image_a_batch
from data_prep.spark.progress import task_progress
from data_prep.splits.fingerprint import fingerprint
from data_prep.splits.fingerprint_cache import FingerprintFile, NameChange
from data_prep.splits.labels import compile_pattern
from data_prep.splits.leakage import LeakRecord
from distkeras_grid.errors import EmptyDataError, ImageError, LabelError
from distkeras_grid.progress import Say
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors
from distkeras_grid.spark.memory import python_limit_mb
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Batches = Iterator["pa.RecordBatch"]

SCAN_SCHEMA = "uri string, pixel_sha256 string, fingerprint binary, error string"


@dataclass(frozen=True)
class ScanResult:
    """Pictures with their splits, and their fingerprints by name."""

    pictures: list[LeakRecord]
    fingerprints: Mapping[str, bytes]  # Empty if no near-duplicates are looked for
    unreadable: dict[str, str]  # Why other files could not be looked at, by path


@dataclass(frozen=True)
class ScanSettings:
    """What a task does with each image."""

    choice: PlaneSelector  # Page, channel and focal plane of files that hold several
    max_pixels: int  # Larger images that can only be decoded as a whole are refused
    near_duplicates: bool  # Whether fingerprints are computed

    def at(self, uri: str, content: OpenFile) -> dict[str, Any]:
        """Return the digest and the fingerprint of an image, or why it has none."""
        try:
            picture = open_image(content.stream, uri, self.choice, max_pixels=self.max_pixels)
            pixels = picture.pixels
            with closing(pixels) if isinstance(pixels, ChunkedImage) else nullcontext():
                stats = survey(pixels)
        except ImageError as error:
            return {"uri": uri, "error": str(error)}
        if content.is_changed:
            return {"uri": uri, "error": f"{uri} has changed while it was read. Run it again."}
        likeness = fingerprint(stats.small, stats.shrink) if self.near_duplicates else b""
        return {"uri": uri, "pixel_sha256": stats.pixel_sha256, "fingerprint": likeness}


def look_at_folder(
    spark: SparkSession,
    settings: TilingSettings,
    patterns: tuple[str, str | None],
    near_duplicates: bool,
    say: Say,
) -> ScanResult:
    """Look at every image of a folder once; the tasks open the files.

    `patterns`: regular expressions for paths below the folder with a group ``split``, and with a
    group ``group`` or None.
    """
    split_of = compile_pattern(patterns[0], "split")
    group_of = None if patterns[1] is None else compile_pattern(patterns[1], "group")
    check_executors(spark, TILING_PACKAGES)
    storage = Storage(spark)
    # A folder that two splits reach is a leak.
    walk = walked(storage, settings.input, each_path=True)
    listed = list_images(spark, storage, settings, walk)
    where = settings.input, settings.file_glob
    hidden = unseen_images(spark, storage, *where, listed, walk)
    opening = choose_opening(spark, storage.resolve(settings.input))
    if opening.kind == SPARK:
        refuse_folders(file.uri for file in listed.values())
        say(opening.describe())
    unreadable = precheck_files(listed, {}, opening.most_bytes)
    lengths = {file.uri: file.length for name, file in listed.items() if name not in unreadable}
    look = ScanSettings(settings.choice, settings.max_pixels, near_duplicates)
    prints = FingerprintFile()
    rows = _looked(spark, lengths, opening, look, settings.input, say, prints) if lengths else {}
    looks = {
        name: rows.get(file.uri) or {"error": f"{file.uri} is gone, or cannot be read."}
        for name, file in listed.items()
        if name not in unreadable
    }
    unreadable |= hidden | {
        name: row["error"] for name, row in looks.items() if row["error"] is not None
    }
    digests = {name: row["pixel_sha256"] for name, row in looks.items() if name not in unreadable}
    pictures = divided(digests, split_of, group_of, whole=not unreadable)
    if group_of is not None:
        alone = sum(picture.group is None for picture in pictures)
        say(f"{alone:,} of {len(pictures):,} images have no group")
    names = {name: listed[name].uri for name in digests if near_duplicates}
    return ScanResult(pictures, NameChange(names, prints), unreadable)


def _looked(
    spark: SparkSession,
    lengths: Mapping[str, int],
    opening: FileOpener,
    look: ScanSettings,
    folder: str,
    say: Say,
    prints: FingerprintFile,
) -> dict[str, dict[str, Any]]:
    """Return what the tasks saw, by the whole paths of the files; add fingerprints to a file."""
    limit = python_limit_mb(spark.sparkContext.getConf().get, str(spark.sparkContext.master))
    reader = Reader(opening, partial(load_contents, spark), care=IsolationPolicy(memory_mb=limit))

    def work_on(some: Mapping[str, int]) -> Callable[[Reader], list[dict[str, Any]]]:
        def work(reader: Reader) -> list[dict[str, Any]]:
            task = looker(look, reader.opening, reader.care)
            images = image_rows(spark, some, reader)
            with one_image_a_batch(spark):
                return list(images.mapInArrow(task, SCAN_SCHEMA).toArrow().to_pylist())

        return work

    say(f"looking at the images in {folder} ...")
    with executor_errors(spark, folder, "the check of"), task_progress(spark, "looking", say):
        rows = {}
        for row in run_in_batches(work_on, lengths, reader, say):
            if likeness := row.pop("fingerprint"):
                prints.add(row["uri"], likeness)
            rows[row["uri"]] = row
        return rows


def divided(
    digests: Mapping[str, str],
    split_of: re.Pattern[str],
    group_of: re.Pattern[str] | None,
    *,
    whole: bool,
) -> list[LeakRecord]:
    """Return the pictures of a folder with their splits and groups.

    `digests`: digests of the pixels, by path below the folder.
    `whole`: whether all files could be read. One that could not may be the only image of a split.
    """
    pictures = [
        LeakRecord(
            *(name, _named(split_of, "split", name), digest),
            None if group_of is None else _group_of(group_of, "group", name),
        )
        for name, digest in sorted(digests.items())
    ]
    if not pictures:
        raise EmptyDataError("No image of the folder can be read. Check the folder.")
    if whole and len({picture.split for picture in pictures}) == 1:
        raise LabelError(
            f"All images belong to the split {pictures[0].split!r}. Give the folder that holds the "
            "folders of the splits, or --splits PATTERN."
        )
    if group_of is not None and all(picture.group is None for picture in pictures):
        raise LabelError(
            f"No image has a group: {group_of.pattern!r} finds none, for instance in "
            f"{pictures[0].name}. Mend --group."
        )
    return pictures


def _named(pattern: re.Pattern[str], name: str, path: str) -> str:
    value = _group_of(pattern, name, path)
    if not value:
        raise LabelError(
            f"{path} belongs to no split: {pattern.pattern!r} finds none. Put it into the folder "
            "of its split, or give --splits PATTERN."
        )
    return value


def _group_of(pattern: re.Pattern[str], name: str, path: str) -> str | None:
    # Normalised as for labels and groups: some file systems write decomposed letters.
    match = pattern.search(unicodedata.normalize("NFC", path))
    return match.group(name) if match else None


def looker(
    look: ScanSettings, opening: FileOpener, care: IsolationPolicy
) -> Callable[[Batches], Batches]:
    """Return the function of a task, which looks at each image."""

    def run(batches: Batches) -> Batches:
        import cv2
        import pyarrow as pa

        cv2.setNumThreads(1)
        kinds = {"fingerprint": pa.binary()}
        names = [entry.split()[0] for entry in SCAN_SCHEMA.split(", ")]
        schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])
        with care.trials() as trials:
            for batch in batches:
                for row in batch.to_pylist():
                    record = _look(row, opening, look, trials, care)
                    yield pa.RecordBatch.from_pylist([record], schema)

    return run


def _look(
    row: dict[str, Any],
    opening: FileOpener,
    look: ScanSettings,
    trials: DecodeSandbox | None,
    care: IsolationPolicy,
) -> dict[str, Any]:
    try:
        if trials is not None:
            trials.survive(row["path"], _open_and_look, row, opening, look)
        with care.in_time():
            return _open_and_look(row, opening, look)
    except ImageError as error:
        return {"uri": row["path"], "error": str(error)}


def _open_and_look(row: dict[str, Any], opening: FileOpener, look: ScanSettings) -> dict[str, Any]:
    with content_of(row, opening) as content:
        return look.at(row["path"], content)

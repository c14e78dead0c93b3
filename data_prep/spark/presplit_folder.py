"""A folder of images that somebody else has divided into splits, for the check of leaks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from data_prep.dataset.settings import TilingSettings
from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.file_access import SPARK, OpenFile
from data_prep.images.image_stats import survey
from data_prep.images.open_image import open_image
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark.discovery import find_images
from data_prep.spark.driver import scan_files
from data_prep.spark.scan import CHANGED
from data_prep.splits.fingerprint import fingerprint
from data_prep.splits.fingerprint_cache import FingerprintFile
from data_prep.splits.labels import compile_pattern
from data_prep.splits.leakage import LeakRecord
from distkeras_grid.errors import EmptyDataError, ImageError, LabelError
from distkeras_grid.progress import Say
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ScanResult:
    """Pictures with their splits, and their fingerprints."""

    pictures: list[LeakRecord]
    fingerprints: Mapping[str, bytes]  # Empty if no near-duplicates are looked for
    names: Mapping[str, str]  # Keys of fingerprints by the names of the pictures
    unreadable: dict[str, str]  # Why other files could not be looked at, by path


@dataclass(frozen=True, slots=True)
class PixelScan:
    """The pixels of one file."""

    uri: str
    pixel_sha256: str = ""
    fingerprint: bytes = b""
    error: str | None = None


@dataclass(frozen=True)
class PixelMeasure:
    """What the check of leaks measures."""

    choice: PlaneSelector  # Page, channel and focal plane of files that hold several
    max_pixels: int  # Larger images that can only be decoded as a whole are refused
    near_duplicates: bool  # Whether fingerprints are computed

    record = PixelScan

    def __call__(self, uri: str, content: OpenFile) -> PixelScan:
        """Return the digest and the fingerprint of an image."""
        picture = open_image(content.stream, uri, self.choice, max_pixels=self.max_pixels)
        pixels = picture.pixels
        with closing(pixels) if isinstance(pixels, ChunkedImage) else nullcontext():
            stats = survey(pixels)
        if content.is_changed:
            raise ImageError(f"{uri} {CHANGED}. Run it again.")
        likeness = fingerprint(stats.small, stats.shrink) if self.near_duplicates else b""
        return PixelScan(uri, stats.pixel_sha256, likeness)

    def failure(self, uri: str, error: ImageError) -> PixelScan:
        """Return why an image has no digest."""
        return PixelScan(uri, error=str(error))


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
    # A folder that two splits reach is a leak.
    images = find_images(spark, Storage(spark), settings, each_path=True)
    if images.reader.opening.kind == SPARK:
        say(images.reader.opening.describe())
    prints = FingerprintFile()
    measure = PixelMeasure(settings.choice, settings.max_pixels, near_duplicates)

    def keep(scan: PixelScan) -> PixelScan:
        if scan.fingerprint:
            prints.add(scan.pixel_sha256, scan.fingerprint)
        return replace(scan, fingerprint=b"")

    scans = scan_files(spark, measure, images.lengths, images.reader, settings.input, say, keep)
    gone = {
        name: f"{file.uri} is gone, or cannot be read."
        for name, file in images.listed.items()
        if file.uri not in scans
    }
    good = {name: scans[file.uri] for name, file in images.listed.items() if name not in gone}
    errors = {name: scan.error for name, scan in good.items() if scan.error is not None}
    unreadable = images.unseen | gone | images.broken | errors
    digests = {name: scan.pixel_sha256 for name, scan in good.items() if name not in errors}
    pictures = divided(digests, split_of, group_of, whole=not unreadable)
    if group_of is not None:
        alone = sum(picture.group is None for picture in pictures)
        say(f"{alone:,} of {len(pictures):,} images have no group")
    return ScanResult(pictures, prints, digests, unreadable)


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

"""The check that splits and folds share no image, also of data sets of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from data_prep.dataset.commit import require_head
from data_prep.dataset.manifest import DataSet
from data_prep.dataset.settings import TilingSettings
from data_prep.images.open_image import MAX_PIXELS
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark.presplit_folder import ScanResult, look_at_folder
from data_prep.splits.fingerprint_store import load_fingerprints
from data_prep.splits.leakage import Leak, LeakRecord, find_leaks
from data_prep.splits.near_duplicates import find_near_duplicates
from distkeras_grid.dataset.folds import TEST, Folds
from distkeras_grid.dataset.manifest import DuplicatePair, ImageRecord
from distkeras_grid.dataset.versions import present_number
from distkeras_grid.errors import (
    ConfigurationError,
    DataError,
    PathNotFoundError,
    SchemaError,
)
from distkeras_grid.progress import Say
from distkeras_grid.spark.dataframes import read_parquet
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_FOLDER = "^(?P<split>[^/]+)/"


@dataclass(frozen=True)
class LeakageReport:
    """What `check_leaks_of` found."""

    pictures: dict[str, int]  # Pictures by split
    leaks: list[Leak]
    # Why other files could not be checked, by path
    unreadable: dict[str, str] = field(default_factory=dict)
    # Pictures that were not compared with all that may show their place
    cut_short: list[str] = field(default_factory=list)


def check_leaks_of(
    data: str,
    *,
    spark: SparkSession | None = None,
    splits: str = FIRST_FOLDER,
    group: str | None = None,
    near_duplicates: bool = True,
    glob: str | None = None,
    choice: PlaneSelector | None = None,
    max_pixels: int = MAX_PIXELS,
    say: Say = lambda _: None,
) -> LeakageReport:
    """Look for anything that stands in more than one split, or in more than one fold.

    `max_pixels`: for a folder of images: larger images that can only be decoded as a whole are not
    judged.
    """
    session = spark or build_session("distkeras_grid check-leaks")
    storage = Storage(session)
    root = data.rstrip("/")
    if not storage.exists(root):
        raise PathNotFoundError(f"There is no {data}. Check the path.")
    if present_number(root, storage.list_names, storage.exists) is not None:
        arguments = (splits, group, glob, choice or PlaneSelector(), max_pixels)
        if arguments != (FIRST_FOLDER, None, None, PlaneSelector(), MAX_PIXELS):
            raise ConfigurationError(
                f"{data} is a data set of tiles, which knows its splits, groups and images. Leave "
                "out the patterns, and what chooses images."
            )
        known = _known(storage, root)
        pictures = _tiles(session, storage, root, known, near_duplicates)
    else:
        known = None
        # Nothing is written, so there is no output; but the settings need one.
        limits = {"glob": glob, "max_pixels": max_pixels, **(choice or PlaneSelector()).to_json()}
        settings = TilingSettings(root, root, **limits)
        pictures = look_at_folder(session, settings, (splits, group), near_duplicates, say)
    search = find_near_duplicates(pictures.fingerprints, names=pictures.names)
    counts: dict[str, int] = {}
    for picture in pictures.pictures:
        counts[picture.split] = counts.get(picture.split, 0) + 1
    leaks = find_leaks(pictures.pictures, search.pairs)
    if known is not None:
        for _, folds in sorted(known.manifest.folds.items()):
            leaks += leaks_of_folds(known.entries.values(), folds, search.pairs)
    return LeakageReport(counts, leaks, pictures.unreadable, search.cut_short)


def _known(storage: Storage, root: str) -> DataSet:
    try:
        return require_head(storage, root)
    except SchemaError as error:
        error.add_note("Check the folder of images from which the data set was made.")
        raise


def _tiles(
    spark: SparkSession, storage: Storage, root: str, known: DataSet, near_duplicates: bool
) -> ScanResult:
    """Return the sources of the manifest, compared with the rows."""
    tiled = [entry for entry in known.entries.values() if entry.has_rows and entry.content]
    pictures = pictures_of(known.entries.values())
    _hold_against_rows(spark, root, tiled, pictures)
    fingerprints: Mapping[str, bytes] = {}
    if near_duplicates:
        fingerprints = load_fingerprints(storage, root)
        missing = [each.source for each in tiled if each.content not in fingerprints]
        if missing:
            raise DataError(
                f"{root} has no fingerprint of {len(missing)} images, such as {missing[0]}, so "
                "near-duplicates cannot be judged. Run tile --update, which makes them, or check "
                "without them (--near-duplicates off)."
            )
    names = {each.source: str(each.content) for each in tiled}
    return ScanResult(pictures, fingerprints, names, {})


def pictures_of(
    entries: Iterable[ImageRecord], places: Mapping[str, str] | None = None
) -> list[LeakRecord]:
    """Return the pictures of a data set of tiles, with the splits in which their tiles stand."""
    every = [entry for entry in entries if entry.content]
    tiled = {entry.source: str(entry.split) for entry in every if entry.has_rows}
    if places is not None:
        tiled = {path: places[path] for path in tiled if path in places}
    splits: dict[str | None, set[str]] = {}
    for entry in every:
        if entry.source in tiled:
            splits.setdefault(entry.content, set()).add(tiled[entry.source])
    return [
        LeakRecord(entry.source, split, str(entry.content), entry.group)
        for entry in every
        for split in (
            [tiled[entry.source]]
            if entry.source in tiled
            else sorted(splits.get(entry.content, ()))
        )
    ]


def leaks_of_folds(
    entries: Iterable[ImageRecord], folds: Folds, likenesses: Iterable[DuplicatePair]
) -> list[Leak]:
    """Return what is held out by one fold, and trained on in it, because it is in another, too.

    `folds`: its folds count as splits. Images of the split ``test`` are in none.
    """
    taking_part = (entry for entry in entries if entry.split != TEST)
    pictures = pictures_of(taking_part, folds.held_out)
    names = {each.name for each in pictures}
    return find_leaks(
        pictures, [pair for pair in likenesses if names.issuperset((pair.one, pair.other))]
    )


def _hold_against_rows(
    spark: SparkSession, root: str, tiled: Sequence[ImageRecord], pictures: list[LeakRecord]
) -> None:
    """Add the splits found in the rows: the tiles count, not what the manifest says."""
    rows = read_parquet(spark, root).select("split", "source", "source_sha256").distinct().collect()
    pairs = {(each.sha256, each.split): each for each in tiled}
    contents = {each.sha256: str(each.content) for each in tiled}
    for row in rows:
        if (row.source_sha256, row.split) not in pairs:
            content = contents.get(row.source_sha256, row.source_sha256)
            pictures.append(LeakRecord(f"tiles of {row.source}", row.split, content))

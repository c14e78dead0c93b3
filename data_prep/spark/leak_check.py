"""``distkeras-grid check-leaks``: splits and folds share no image, also of other data sets."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from data_prep.dataset.manifest import DataSet, ImageRecord
from data_prep.dataset.settings import TilingSettings
from data_prep.images.open_image import MAX_PIXELS
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark.presplit_folder import ScanResult, look_at_folder
from data_prep.splits.duplicate_pairs import describe_cut_short
from data_prep.splits.fingerprint_cache import NameChange
from data_prep.splits.fingerprint_store import load_fingerprints
from data_prep.splits.leakage import Leak, LeakRecord, find_leaks
from data_prep.splits.near_duplicates import DuplicatePair, find_near_duplicates
from distkeras_grid.cli.console import output, print_result, report
from distkeras_grid.cli.exit_codes import ExitCode, run_command
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.spinner import start_spark
from distkeras_grid.errors import (
    ConfigurationError,
    DataError,
    PathNotFoundError,
    SchemaError,
)
from distkeras_grid.progress import Say
from distkeras_grid.spark.dataframes import MANIFEST, read_parquet
from distkeras_grid.spark.folds import TEST, Folds
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_FOLDER = "^(?P<split>[^/]+)/"

DESCRIPTION = """\
Check that nothing stands in two splits: the same pixels in any file format, the same group (such as
a specimen), or the same place of a specimen, resized, recompressed, cropped or with an overlapping
field of view. The folds of a data set are checked in the same way. Ends with code 3 and a list if
something is found.

--data is a data set of tiles, or a folder of images that anybody has divided, with one folder for
each split, such as train/, val/ and test/.
"""
EXAMPLES = """\
examples:
  distkeras-grid check-leaks --data hdfs:///tiles
  distkeras-grid check-leaks --data downloads/rocks --group '/(?P<group>S[0-9]+)_'
  distkeras-grid check-leaks --data downloads/cells --glob '*.czi' --channel DAPI --z max
"""


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
    if storage.exists(f"{root}/{MANIFEST}"):
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
    search = find_near_duplicates(pictures.fingerprints if near_duplicates else {})
    counts: dict[str, int] = {}
    for picture in pictures.pictures:
        counts[picture.split] = counts.get(picture.split, 0) + 1
    leaks = find_leaks(pictures.pictures, search.pairs)
    if known is not None:
        for _, folds in sorted(known.folds.items()):
            leaks += leaks_of_folds(known.entries.values(), folds, search.pairs)
    return LeakageReport(counts, leaks, pictures.unreadable, search.cut_short)


def _known(storage: Storage, root: str) -> DataSet:
    try:
        return DataSet.from_text(storage.read_text(f"{root}/{MANIFEST}"))
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
        stored = load_fingerprints(storage, root)
        missing = [each.source for each in tiled if each.content not in stored]
        if missing:
            raise DataError(
                f"{root} has no fingerprint of {len(missing)} images, such as {missing[0]}, so "
                "near-duplicates cannot be judged. Run tile --update, which makes them, or check "
                "without them (--near-duplicates off)."
            )
        fingerprints = NameChange({each.source: str(each.content) for each in tiled}, stored)
    return ScanResult(pictures, fingerprints, {})


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


def blind_spot(*, near_duplicates: bool) -> str:
    """Return what the check cannot see, as one line."""
    if not near_duplicates:
        return "not looked for: pictures of the same place (--near-duplicates on)"
    return (
        "not seen: mirrored copies, some crops to half of both sides, and most pairs that share 30 "
        "% of their width; groups that are known (--group) tell those"
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = verb_parser("check-leaks", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--data", required=True, metavar="URI", help="data set of tiles, or folder of images")
    add(
        "--splits",
        default=FIRST_FOLDER,
        metavar="PATTERN",
        help="of a folder: regular expression for paths below it, with a group (?P<split>...) "
        "(the first folder)",
    )
    add(
        "--group",
        metavar="PATTERN",
        help="of a folder: regular expression with a group (?P<group>...), such as the specimen",
    )
    add(
        "--near-duplicates",
        choices=("on", "off"),
        default="on",
        help="whether pictures of the same place are looked for (on)",
    )
    add(
        "--glob",
        metavar="PATTERN",
        help="of a folder: file names to check (all PNG, JPEG, TIFF and BMP)",
    )
    add("--page", type=int, metavar="N", help="of a folder: page of files that have several")
    add(
        "--channel",
        metavar="N|NAME",
        help="of a folder: channel of files that have several: a number from 0, a name, or three "
        "with commas",
    )
    add(
        "--z",
        metavar="N|max|mean",
        help="of a folder: focal plane of files that have several, or the maximum or mean of all",
    )
    add(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        metavar="N",
        help="of a folder: larger images that can only be decoded as a whole are not judged "
        f"({MAX_PIXELS})",
    )
    add("--master", help="Spark master of a session started here (default: local[*,4])")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: check(flags))


def check(flags: argparse.Namespace) -> ExitCode:
    """Check as the flags say."""
    session = start_spark("distkeras-grid check-leaks", flags.master)
    checked = check_leaks_of(
        flags.data,
        spark=session,
        splits=flags.splits,
        group=flags.group,
        near_duplicates=flags.near_duplicates == "on",
        glob=flags.glob,
        choice=PlaneSelector(flags.page, flags.channel, flags.z),
        max_pixels=flags.max_pixels,
        say=output(),
    )
    counts = ", ".join(f"{split} {count:,}" for split, count in sorted(checked.pictures.items()))
    print_result(f"images: {counts}")
    for leak in checked.leaks:
        print_result(f"  {leak.describe()}")
    for name, why in sorted(checked.unreadable.items()):
        print_result(f"  not judged: {name}: {why}")
    for line in describe_cut_short(checked.cut_short):
        print_result(line)
    print_result(f"{len(checked.leaks):,} leaks" if checked.leaks else "no leak")
    print_result(f"  {blind_spot(near_duplicates=flags.near_duplicates == 'on')}")
    report(
        data=flags.data,
        images=checked.pictures,
        leaks=[leak.to_json() for leak in checked.leaks],
        not_judged=checked.unreadable,
        cut_short=checked.cut_short,
    )
    if checked.leaks:
        return ExitCode.DATA
    return ExitCode.PARTIAL if checked.unreadable else ExitCode.OK

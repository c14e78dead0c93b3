"""``distkeras-grid check-leaks``: checks that splits share no image, also of other data sets."""

from __future__ import annotations

import argparse
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

from data_prep.images import open_image
from data_prep.isolation import LATER, Trials
from data_prep.job import executor_errors, relative_to
from data_prep.labels import compile_pattern
from data_prep.leaks import Leak, Picture, find_leaks
from data_prep.likeness import fingerprint
from data_prep.likeness_store import load_fingerprints
from data_prep.manifest import DataSet, Entry
from data_prep.near_duplicates import find_near_duplicates
from data_prep.raster import Raster
from data_prep.settings import suffix_glob
from data_prep.stages import one_image_a_batch
from data_prep.survey import survey
from data_prep.task_status import task_progress
from distkeras_grid.cli.console import output, report, tell
from distkeras_grid.cli.doing import started
from distkeras_grid.cli.exit_codes import ExitCode, guarded
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.errors import (
    ConfigurationError,
    DataError,
    EmptyDataError,
    ImageError,
    LabelError,
    PathNotFoundError,
    SchemaError,
)
from distkeras_grid.spark.dataframes import MANIFEST, read_parquet
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Say = Callable[[str], object]
Batches = Iterator["pa.RecordBatch"]

FIRST_FOLDER = "^(?P<split>[^/]+)/"
SEEN = "uri string, pixel_sha256 string, fingerprint binary, error string"
# At most this many pictures are named in one line.
SHOWN = 5

DESCRIPTION = """\
Check that nothing stands in two splits: the same pixels in any file format, the same group (such as
a specimen), or the same place of a specimen, resized, recompressed, cropped or with an overlapping
field of view. Ends with code 3 and a list if something does.

--data is a data set of tiles, or a folder of images that anybody has divided, with one folder for
each split, such as train/, val/ and test/.
"""
EXAMPLES = """\
examples:
  distkeras-grid check-leaks --data hdfs:///tiles
  distkeras-grid check-leaks --data downloads/rocks --group '/(?P<group>S[0-9]+)_'
"""


@dataclass(frozen=True)
class Checked:
    """What `check_leaks_of` found.

    Parameters
    ----------
    pictures : dict of str to int
        Pictures by split.
    leaks : list of Leak
    unreadable : dict of str to str
        Why other files could not be checked, by path.
    """

    pictures: dict[str, int]
    leaks: list[Leak]
    unreadable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Seen:
    """Pictures with their splits, and their fingerprints by name."""

    pictures: list[Picture]
    fingerprints: dict[str, bytes]
    unreadable: dict[str, str]


def check_leaks_of(
    data: str,
    *,
    spark: SparkSession | None = None,
    splits: str = FIRST_FOLDER,
    group: str | None = None,
    near_duplicates: bool = True,
    say: Say = lambda _: None,
) -> Checked:
    """Look for anything that stands in more than one split.

    Parameters
    ----------
    data : str
        A data set of tiles, or a folder of images; any Hadoop path.
    spark : SparkSession, optional
        Default: the running one, or a new local one.
    splits : str
        For a folder of images: regular expression for paths below it, whose named group ``split``
        is the split. Default: the first folder.
    group : str, optional
        For a folder of images: regular expression whose named group ``group`` is the group.
    near_duplicates : bool, default True
        Whether to look for pictures of the same place.
    say : callable, optional
        Receives progress lines.

    Returns
    -------
    Checked

    Raises
    ------
    PathNotFoundError, EmptyDataError
        If there is nothing to check.
    ConfigurationError
        If a pattern cannot be used.
    LabelError
        If an image of a folder belongs to no split, all belong to one, or none has a group.
    DataError
        If a data set of tiles lacks something that the check needs.
    """
    session = spark or build_session("distkeras_grid check-leaks")
    storage = Storage(session)
    root = data.rstrip("/")
    if not storage.exists(root):
        raise PathNotFoundError(f"There is no {data}. Check the path.")
    if storage.exists(f"{root}/{MANIFEST}"):
        if group is not None or splits != FIRST_FOLDER:
            raise ConfigurationError(
                f"{data} is a data set of tiles, which knows its splits and groups. Leave out the "
                "patterns."
            )
        seen = _tiles(session, storage, root, near_duplicates)
    else:
        seen = _folder(session, storage, root, (splits, group), near_duplicates, say)
    likenesses = find_near_duplicates(seen.fingerprints) if near_duplicates else []
    counts: dict[str, int] = {}
    for picture in seen.pictures:
        counts[picture.split] = counts.get(picture.split, 0) + 1
    return Checked(counts, find_leaks(seen.pictures, likenesses), seen.unreadable)


def _tiles(spark: SparkSession, storage: Storage, root: str, near_duplicates: bool) -> _Seen:
    """Read the sources from the manifest, and compare them with the rows."""
    try:
        known = DataSet.from_text(storage.read_text(f"{root}/{MANIFEST}"))
    except SchemaError as error:
        error.add_note("Check the folder of images from which the data set was made.")
        raise
    tiled = [entry for entry in known.entries.values() if entry.has_rows and entry.content]
    pictures = pictures_of(known.entries.values())
    _hold_against_rows(spark, root, tiled, pictures)
    fingerprints = {}
    if near_duplicates:
        stored = load_fingerprints(storage, root)
        missing = [each.source for each in tiled if each.content not in stored]
        if missing:
            raise DataError(
                f"{root} has no fingerprint of {len(missing)} images, such as {missing[0]}, so "
                "near-duplicates cannot be judged. Run tile --update, which makes them, or check "
                "without them (--near-duplicates off)."
            )
        fingerprints = {each.source: stored[str(each.content)] for each in tiled}
    return _Seen(pictures, fingerprints, {})


def pictures_of(entries: Iterable[Entry]) -> list[Picture]:
    """Return the pictures of a data set of tiles, with the splits in which their tiles stand.

    Parameters
    ----------
    entries : iterable of Entry
        Entries; an untiled copy adds its group to the splits of the picture that is tiled.
    """
    every = [entry for entry in entries if entry.content]
    splits: dict[str | None, set[str]] = {}
    for entry in every:
        if entry.has_rows:
            splits.setdefault(entry.content, set()).add(str(entry.split))
    return [
        Picture(entry.source, split, str(entry.content), entry.group)
        for entry in every
        for split in (
            [str(entry.split)] if entry.has_rows else sorted(splits.get(entry.content, ()))
        )
    ]


def _hold_against_rows(
    spark: SparkSession, root: str, tiled: Sequence[Entry], pictures: list[Picture]
) -> None:
    """Add the splits found in the rows: the tiles count, not what the manifest says."""
    rows = read_parquet(spark, root).select("split", "source", "source_sha256").distinct().collect()
    said = {(each.sha256, each.split): each for each in tiled}
    contents = {each.sha256: str(each.content) for each in tiled}
    for row in rows:
        if (row.source_sha256, row.split) not in said:
            content = contents.get(row.source_sha256, row.source_sha256)
            pictures.append(Picture(f"tiles of {row.source}", row.split, content))


def _folder(
    spark: SparkSession,
    storage: Storage,
    root: str,
    patterns: tuple[str, str | None],
    near_duplicates: bool,
    say: Say,
) -> _Seen:
    """Look at every image of a folder once."""
    split_of = compile_pattern(patterns[0], "split")
    group_of = None if patterns[1] is None else compile_pattern(patterns[1], "group")
    check_executors(spark, TILING_PACKAGES)
    say(f"looking at the images in {root} ...")
    images = (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", suffix_glob())
        .option("recursiveFileLookup", "true")
        .load(root)
        .select("path", "content")
    )
    with (
        executor_errors(spark, root, "the check of"),
        one_image_a_batch(spark),
        task_progress(spark, "looking", say),
    ):
        rows = images.mapInArrow(_looker(near_duplicates), SEEN).collect()
    below = relative_to(storage.resolve(root))
    looks = {below(row.uri): row for row in rows}
    unreadable = {name: row.error for name, row in looks.items() if row.error is not None}
    digests = {name: row.pixel_sha256 for name, row in looks.items() if row.error is None}
    pictures = divided(digests, split_of, group_of, whole=not unreadable)
    if group_of is not None:
        alone = sum(picture.group is None for picture in pictures)
        say(f"{alone:,} of {len(pictures):,} images have no group")
    fingerprints = {name: bytes(looks[name].fingerprint) for name in digests if near_duplicates}
    return _Seen(pictures, fingerprints, unreadable)


def divided(
    digests: Mapping[str, str],
    split_of: re.Pattern[str],
    group_of: re.Pattern[str] | None,
    *,
    whole: bool,
) -> list[Picture]:
    """Return the pictures of a folder with their splits and groups.

    Parameters
    ----------
    digests : mapping of str to str
        Digests of the pixels, by path below the folder.
    split_of, group_of : re.Pattern
        Patterns with the named groups ``split`` and ``group``.
    whole : bool
        Whether all files could be read. One that could not may be the only image of a split.

    Raises
    ------
    EmptyDataError, LabelError
        See `check_leaks_of`.
    """
    pictures = [
        Picture(
            *(name, _named(split_of, "split", name), digest),
            None if group_of is None else _found(group_of, "group", name),
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
    found = _found(pattern, name, path)
    if not found:
        raise LabelError(
            f"{path} belongs to no split: {pattern.pattern!r} finds none. Put it into the folder "
            "of its split, or give --splits PATTERN."
        )
    return found


def _found(pattern: re.Pattern[str], name: str, path: str) -> str | None:
    # Normalised as for labels and groups: some file systems write decomposed letters.
    found = pattern.search(unicodedata.normalize("NFC", path))
    return found.group(name) if found else None


def _looker(near_duplicates: bool) -> Callable[[Batches], Batches]:
    """Return the function of a task, which looks at each image."""

    def look(batches: Batches) -> Batches:
        import cv2
        import pyarrow as pa

        cv2.setNumThreads(1)
        kinds = {"fingerprint": pa.binary()}
        names = [entry.split()[0] for entry in SEEN.split(", ")]
        schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])
        with LATER.trials() as trials:
            for batch in batches:
                for row in batch.to_pylist():
                    seen = _look(row["path"], row["content"], near_duplicates, trials)
                    yield pa.RecordBatch.from_pylist([seen], schema)

    return look


def _look(uri: str, content: bytes, near_duplicates: bool, trials: Trials | None) -> dict[str, Any]:
    try:
        if trials is not None:
            trials.survive(uri, _look, uri, content, near_duplicates, None)
        pixels = open_image(BytesIO(content), uri).pixels
        with closing(pixels) if isinstance(pixels, Raster) else nullcontext():
            seen = survey(pixels)
    except ImageError as error:
        return {"uri": uri, "error": str(error)}
    likeness = fingerprint(seen.small, seen.shrink) if near_duplicates else b""
    return {"uri": uri, "pixel_sha256": seen.pixel_sha256, "fingerprint": likeness}


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
    add("--master", help="Spark master of a session started here (default: local[*,4])")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    flags = build_parser().parse_args(argv)
    return guarded(lambda: check(flags))


def check(flags: argparse.Namespace) -> ExitCode:
    """Check as the flags say."""
    session = started("distkeras-grid check-leaks", flags.master)
    checked = check_leaks_of(
        flags.data,
        spark=session,
        splits=flags.splits,
        group=flags.group,
        near_duplicates=flags.near_duplicates == "on",
        say=output(),
    )
    counts = ", ".join(f"{split} {count:,}" for split, count in sorted(checked.pictures.items()))
    tell(f"images: {counts}")
    for leak in checked.leaks:
        tell(f"  {leak.describe()}")
    for name, why in sorted(checked.unreadable.items()):
        tell(f"  not judged: {name}: {why}")
    tell(f"{len(checked.leaks):,} leaks" if checked.leaks else "no leak")
    report(
        data=flags.data,
        images=checked.pictures,
        leaks=[leak.to_json() for leak in checked.leaks],
        not_judged=checked.unreadable,
    )
    if checked.leaks:
        return ExitCode.DATA
    return ExitCode.PARTIAL if checked.unreadable else ExitCode.OK

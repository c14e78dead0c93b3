"""The manifest of a data set: what a version holds, image by image; no I/O.

Pixels are Parquet files in folders, the shards, and no file in a shard ever changes. A row in a
file has the path, the label and the split that its image had when it was tiled. What an image has
now stands in the manifest, and is put into the rows when they are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from distkeras_grid.dataset.folds import TEST, Folds, check_together, splits_in
from distkeras_grid.errors import UNREADABLE, SchemaError

# In the metadata of the image column: which version its rows are of.
VERSION_KEY = "distkeras_grid_version"
TILED, LEFT_OUT, REMOVED = "tiled", "left out", "removed"

Number = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
# -1: there is none yet.
Last = Annotated[int, msgspec.Meta(ge=-1, lt=10**18)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Split = Annotated[str, msgspec.Meta(pattern=r"^(train|validation|test)\Z")]
# ``shard=``, the number of the shard and, since layout 2, the id of the run that wrote it.
ShardName = Annotated[str, msgspec.Meta(pattern=r"^shard=[0-9]{1,18}(-[0-9A-Za-z-]{1,64})?\Z")]
_NUMBER = re.compile(r"shard=(\d{1,18})(?:-[0-9A-Za-z-]{1,64})?")
# As `datetime.isoformat` writes it, in UTC.
Time = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00\Z")]


# Of each image there is one on the driver. With more than 30 fields, instances have no common keys
# in CPython: 100,000 entries without slots take 169 MB, with slots 37.
@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image, as a manifest lists it."""

    source: str  # Path below the input folder
    status: str  # Only images of the status ``"tiled"`` have rows
    tiles: int = 0  # Number of tiles
    reason: str | None = None  # Why the image is left out, or why only its former tiles are there
    sha256: Digest | None = None
    label: str | None = None
    split: Split | None = None
    group: str | None = None
    width: int | None = None  # width and height and channels: Size in pixels; number of channels
    height: int | None = None
    channels: int | None = None
    shard: Number | None = None  # Number of the shard with its tiles
    update: int | None = None  # Number of the version that brought its tiles, from 0
    notes: str | None = None  # What was done to the values while the file was read
    bits: int | None = None  # Significant bits of its values
    pixel_size: float | None = None  # Width of a pixel of its tiles, micrometres
    zones: str | None = None  # Hash of the zones that apply to it
    excluded: int | None = None  # Number of tiles that zones exclude
    empty_angles: int | None = None  # Number of angles without a tile
    # low and high: Values of the image that became 0 and white when it was normalised
    low: float | None = None
    high: float | None = None
    # Numbers that describe its stains; see `data_prep.images.stain_normalization`
    stain: str | None = None
    filtered: int | None = None  # Number of tiles that were dropped by the conditions of `keep`
    # length and modified: Size of the file in bytes, and time of its last change, milliseconds
    # since 1970, when it was read
    length: int | None = None
    modified: int | None = None
    # Digest of the decoded pixels; files with other bytes can have the same
    pixel_sha256: Digest | None = None
    # stored_source and stored_label and stored_split: Values in the files of its rows, where they
    # differ from `source`, `label` or `split`
    stored_source: str | None = None
    stored_label: str | None = None
    stored_split: Split | None = None
    set_aside: str | None = None  # Why its tiles are not read, although they are there
    # Which of `label` and `group` were set by `data_prep.dataset.label_edits`; updates keep them
    by_hand: tuple[Literal["label", "group"], ...] | None = None

    @property
    def has_rows(self) -> bool:
        """Whether its tiles are read."""
        return self.status == TILED and self.set_aside is None

    @property
    def is_corrected(self) -> bool:
        """Whether its rows have something else in their files."""
        return any((self.stored_source, self.stored_label, self.stored_split))

    @property
    def content(self) -> str | None:
        """Digest that identifies the picture: of its pixels, else of the bytes of its file."""
        return self.pixel_sha256 or self.sha256

    def to_json(self) -> dict[str, Any]:
        """Return the values that are set, as JSON types."""
        values = {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}
        # Tuples become lists, as in JSON, so that the result can be compared with what was read.
        return {
            name: list(each) if isinstance(each, tuple) else each for name, each in values.items()
        }


_FIELDS = tuple(each.name for each in fields(ImageRecord))


@dataclass(frozen=True, slots=True)
class DuplicatePair:
    """Two pictures that show the same place, and the reason to think so."""

    one: str  # one and other: Names, in alphabetical order
    other: str
    why: str


class LabelOverride(NamedTuple):
    """What the rows of an image have now."""

    sha256: str
    source: str
    split: str
    label: int
    label_name: str


class Version(msgspec.Struct, frozen=True):
    """A former version of a data set."""

    number: Number
    hash: Digest  # What its rows are, in 64 hexadecimal digits
    created: Time  # created and replaced: When it was committed, and when the next one was
    replaced: Time
    shards: tuple[ShardName, ...]  # The folders that hold its tiles
    tiles: Number


class Manifest(msgspec.Struct, frozen=True):
    """What is stored of a version of a data set, as far as programs read it again.

    Data sets of images that `distkeras-grid ingest` made have no shards, sources and hash.
    """

    shards: tuple[ShardName, ...] = ()  # Folders; none in data sets that have no shards
    sources: tuple[ImageRecord, ...] = ()
    image: dict[str, Any] = msgspec.field(default_factory=dict)  # Metadata of the image column
    classes: tuple[str, ...] = ()  # Names of the classes by their numbers
    tiles: Number = 0
    spec: dict[str, Any] = msgspec.field(default_factory=dict)  # How tiles are cut
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    near_duplicates: tuple[DuplicatePair, ...] = ()  # Images that show the same place
    # By the name that begins the names of the folds
    folds: dict[str, Folds] = msgspec.field(default_factory=dict)
    last_update: Last = -1  # Number of the version
    last_shard: Last = -1  # The highest number of a shard in it or in a version before it
    # What decides its rows; empty in data sets of images
    hash: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    created: str = ""
    history: tuple[Version, ...] = ()  # Former versions that are kept, oldest first

    def image_metadata(self) -> dict[str, Any]:
        """Return the metadata of the image column; they tell the version, too."""
        version = {"number": self.last_update, "hash": self.hash}
        return {**self.image, VERSION_KEY: version} if self.hash else self.image

    def splits(self) -> dict[str, str]:
        """Return the split of each image that has rows, by path."""
        return {each.source: each.split for each in self.sources if each.has_rows and each.split}

    def groups(self) -> dict[str, str]:
        """Return the group of each image that has rows and a group, by path."""
        return {
            each.source: each.group
            for each in self.sources
            if each.has_rows and each.group is not None
        }

    def stored_splits(self, split: str) -> set[str]:
        """Return the folders of splits in which the rows of a split lie."""
        return {
            str(each.stored_split or each.split)
            for each in self.sources
            if each.has_rows and each.split == split
        }

    def set_aside(self) -> list[str]:
        """Return the digests of the images whose rows are not read."""
        return [
            str(each.sha256)
            for each in self.sources
            if each.status == TILED and each.set_aside is not None
        ]

    def corrections(self, *, whole: bool = False) -> list[LabelOverride]:
        """Return what rows have now, of images whose files say something else."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        return [
            LabelOverride(
                *(str(each.sha256), each.source, str(each.split)),
                *(numbers[str(each.label)], str(each.label)),
            )
            for each in self.sources
            if each.is_corrected and (each.has_rows or (whole and each.status == TILED))
        ]

    def in_fold(self, column: str, path: str) -> dict[str, str]:
        """Return the split of each image in one fold, by path."""
        folds = next((each for each in self.folds.values() if column in each.columns), None)
        if folds is None:
            known = ", ".join(name for each in self.folds.values() for name in each.columns)
            raise SchemaError(
                f"{path!r} has no fold {column!r}. Its folds: {known or 'none'}. Make folds by "
                "distkeras-grid folds."
            )
        splits = self.splits()
        held_out = {path: fold for path, fold in folds.held_out.items() if path in splits}
        check_together(held_out, self.together())
        return splits_in(folds, column, splits)

    def together(self) -> Iterator[tuple[str, str, str]]:
        """Yield pairs of images that must not be torn apart in folds, and why.

        Images without rows count, too: copies, removed and excluded images join others. The split
        `test` is in no fold.
        """
        splits = {each.content: each.split for each in self.sources if each.content and each.split}
        there = [
            each for each in self.sources if (each.split or splits.get(each.content or "")) != TEST
        ]
        first: dict[tuple[str, str], str] = {}
        for each in there:
            for why, value in (
                ("the same bytes", each.sha256),
                ("the same pixels", each.pixel_sha256),
                (f"group {each.group}", each.group),
            ):
                if value is not None:
                    yield first.setdefault((why, value), each.source), each.source, why
        if self.settings.get("near_duplicates") == "join":
            paths = {each.source for each in there}
            for pair in self.near_duplicates:
                if paths.issuperset((pair.one, pair.other)):
                    yield pair.one, pair.other, pair.why


def decode_manifest(content: str | bytes, path: str) -> Manifest:
    """Return the manifest in a file of JSON."""
    try:
        return _checked(msgspec.json.decode(content, type=Manifest))
    except UNREADABLE as error:
        raise _no_manifest(path, error) from error


def convert_manifest(content: Any, path: str) -> Manifest:
    """Return the manifest that a parsed file of JSON holds."""
    try:
        return _checked(msgspec.convert(content, Manifest))
    except msgspec.ValidationError as error:
        raise _no_manifest(path, error) from error


def _checked(manifest: Manifest) -> Manifest:
    unknown = {str(each.label) for each in manifest.sources if each.is_corrected}
    unknown -= set(manifest.classes)
    for folds in manifest.folds.values():
        unknown |= set(folds.held_out.values()) - set(folds.columns)
    if unknown:
        raise msgspec.ValidationError(f"it does not list {min(unknown)!r}")
    return manifest


def _no_manifest(path: str, error: Exception) -> SchemaError:
    return SchemaError(
        f"{path} is not the manifest of a data set: {error}. Nothing was done. Look who wrote it."
    )


def shard_number(name: str) -> int:
    """Return the number in the name of a shard's folder.

    Examples
    --------
    >>> shard_number("shard=3"), shard_number("shard=12-20261127T113000-1f2e3d4c")
    (3, 12)
    """
    match = _NUMBER.fullmatch(name)
    if match is None:
        raise SchemaError(f"{name!r} is not the name of a shard. Look who wrote the manifest.")
    return int(match.group(1))

"""What a manifest says of the rows of a data set of tiles: the tables beside the pixels; no I/O.

A file in a shard keeps the label, the split and the path that an image had when it was tiled. What
an image has now stands in the manifest, and is put into the rows when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgspec

from distkeras_grid.errors import UNREADABLE, SchemaError
from distkeras_grid.spark.folds import TEST, Folds, check_together, splits_in
from distkeras_grid.spark.versions import Digest, ShardName

# In the metadata of the image column: which version its rows are of.
VERSION_KEY = "distkeras_grid_version"
Split = Annotated[str, msgspec.Meta(pattern=r"^(train|validation|test)\Z")]


class ImageSource(msgspec.Struct, frozen=True):
    """An image, as a manifest lists it."""

    source: str  # Path below the input folder
    status: str  # Only images of the status ``"tiled"`` have rows
    sha256: Digest | None = None
    label: str | None = None
    split: Split | None = None
    group: str | None = None
    # stored_source and stored_label and stored_split: What its rows have in their files, where that
    # is something else
    stored_source: str | None = None
    stored_label: str | None = None
    stored_split: Split | None = None
    set_aside: str | None = None  # Why its rows are not read
    # Digest of its pixels; files with other bytes can have the same
    pixel_sha256: Digest | None = None

    @property
    def content(self) -> str | None:
        """Digest that identifies the picture: of its pixels, else of the bytes of its file."""
        return self.pixel_sha256 or self.sha256

    @property
    def has_rows(self) -> bool:
        """Whether rows of it are read."""
        return self.status == "tiled" and self.set_aside is None

    @property
    def is_corrected(self) -> bool:
        """Whether its rows have something else in their files."""
        return any((self.stored_source, self.stored_label, self.stored_split))


class LabelOverride(NamedTuple):
    """What the rows of an image have now."""

    sha256: str
    source: str
    split: str
    label: int
    label_name: str


class _DuplicatePair(msgspec.Struct, frozen=True):
    """Two images of the same place."""

    one: str
    other: str
    why: str


class _Settings(msgspec.Struct, frozen=True):
    near_duplicates: str = "off"


class ImageTable(msgspec.Struct, frozen=True):
    """The part of a manifest that decides which rows there are."""

    shards: tuple[ShardName, ...] = ()  # Folders; none in data sets that have no shards
    sources: tuple[ImageSource, ...] = ()
    image: dict[str, Any] = msgspec.field(default_factory=dict)  # Metadata of the image column
    classes: tuple[str, ...] = ()  # Names of the classes by their numbers
    # near_duplicates and settings: Which images show the same place, and whether they stay together
    near_duplicates: tuple[_DuplicatePair, ...] = ()
    settings: _Settings = msgspec.field(default_factory=_Settings)
    # By the name that begins the names of the folds
    folds: dict[str, Folds] = msgspec.field(default_factory=dict)
    last_update: int = -1  # Number of the version
    hash: str = ""  # Hash of the version; empty in manifests of earlier releases

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
            if each.status == "tiled" and each.set_aside is not None
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
            if each.is_corrected and (each.has_rows or (whole and each.status == "tiled"))
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
        if self.settings.near_duplicates == "join":
            paths = {each.source for each in there}
            for pair in self.near_duplicates:
                if paths.issuperset((pair.one, pair.other)):
                    yield pair.one, pair.other, pair.why


def read_tables(manifest: str, path: str) -> ImageTable:
    """Return the tables of a manifest."""
    try:
        table = msgspec.json.decode(manifest, type=ImageTable)
        unknown = {str(each.label) for each in table.sources if each.is_corrected}
        unknown -= set(table.classes)
        for folds in table.folds.values():
            unknown |= set(folds.held_out.values()) - set(folds.columns)
        reason = f"it does not list {min(unknown)!r}" if unknown else None
    except UNREADABLE as error:
        reason = str(error)
    if reason is not None:
        raise SchemaError(
            f"{path} is not the manifest of a data set: {reason}. Nothing was read. Look who wrote "
            "it."
        )
    return table

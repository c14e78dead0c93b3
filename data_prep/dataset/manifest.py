"""``_dataset.json``: what a data set of tiles holds, source by source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec

from data_prep.dataset.history import utc
from data_prep.dataset.schema import max_stored_value
from data_prep.dataset.settings import TilingSettings
from data_prep.geometry.grid import TileSpec
from data_prep.geometry.regions import ZoneRules
from data_prep.splits.labels import FOLDER, parse_rule
from data_prep.splits.near_duplicates import DuplicatePair
from distkeras_grid.errors import UNREADABLE, ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.folds import Folds
from distkeras_grid.spark.tables import Split

VERSION = 1
TILED, LEFT_OUT, REMOVED = "tiled", "left out", "removed"
# Status of an image that is left out, and not read again until it changes.
QUARANTINED = "quarantined"
# Settings that must not change while a data set is added to.
LASTING = (
    "encoding",
    "quality",
    "channels",
    "page",
    "channel",
    "z",
    "bits",
    "pixel_size",
    "source_pixel_size",
    "normalise",
    "keep",
    "split",
    "seed",
    "group",
)
# How the zones of a data set end, where that is meant.
_ENDS_OF_ZONES = {
    "zones": "give a table that has only its first line",
    "bottom_strip": "tile into another output, or replace this one (--overwrite)",
}


# Of each image there is one on the driver. With more than 30 fields, instances have no common keys
# in CPython: 100,000 entries without slots take 169 MB, with slots 37.
@dataclass(frozen=True, slots=True)
class ImageRecord:
    """The entry of one image in ``_dataset.json``."""

    source: str  # Path below the input folder
    status: str
    tiles: int = 0  # Number of tiles
    reason: str | None = None  # Why the image is left out, or why only its former tiles are there
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")] | None = None
    label: str | None = None
    split: Split | None = None
    group: str | None = None
    width: int | None = None  # width and height and channels: Size in pixels; number of channels
    height: int | None = None
    channels: int | None = None
    # Number of the folder ``shard=N`` with its tiles; None in a data set that was written at once
    shard: Annotated[int, msgspec.Meta(ge=0, lt=10**18)] | None = None
    # Number of the publication that brought its tiles, from 0. A long update publishes several
    # times.
    update: int | None = None
    notes: str | None = None  # What was done to the values while the file was read
    bits: int | None = None  # Significant bits of its values
    pixel_size: float | None = None  # Width of a pixel of its tiles, micrometres
    zones: str | None = None  # Hash of the zones that apply to it
    excluded: int | None = None  # Number of tiles that zones exclude
    # uncovered and uncovered_by_angle: Part of the image that no tile shows at any angle, and the
    # mean over the angles
    uncovered: float | None = None
    uncovered_by_angle: float | None = None
    empty_angles: int | None = None  # Number of angles without a tile
    # low and high: Values of the image that became 0 and white when it was normalised
    low: float | None = None
    high: float | None = None
    stain: str | None = (
        None  # Numbers that describe its stains; see `data_prep.images.stain_normalization`
    )
    filtered: int | None = None  # Number of tiles that were dropped by the conditions of `keep`
    # length and modified: Size of the file in bytes, and time of its last change, milliseconds
    # since 1970, when it was read
    length: int | None = None
    modified: int | None = None
    pixel_sha256: str | None = None  # Digest of the decoded pixels
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
    def content(self) -> str | None:
        """Digest that identifies the picture: of its pixels, else of the bytes of its file."""
        return self.pixel_sha256 or self.sha256

    def to_json(self) -> dict[str, Any]:
        """Return the values that are set, as JSON types."""
        fields = {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}
        # Tuples become lists, as in JSON, so that the result can be compared with what was read.
        return {
            name: list(each) if isinstance(each, tuple) else each for name, each in fields.items()
        }


_FIELDS = tuple(each.name for each in fields(ImageRecord))


def revised(entry: ImageRecord, **now: Any) -> ImageRecord:
    """Return an entry with another path, label or split; the files of its rows stay as they are.

    Examples
    --------
    >>> relabelled = revised(ImageRecord("a.png", TILED, label="a"), label="b")
    >>> relabelled.label, relabelled.stored_label, revised(relabelled, label="a").stored_label
    ('b', 'a', None)
    """
    new = replace(entry, **now)
    stored: dict[str, Any] = {
        name: getattr(entry, f"stored_{name}") or getattr(entry, name)
        for name in ("source", "label", "split")
    }
    differ: dict[str, Any] = {
        f"stored_{name}": None if value == getattr(new, name) else value
        for name, value in stored.items()
    }
    return replace(new, **differ)


@dataclass(frozen=True, slots=True)
class UnassignedImage:
    """An image that an update has still to tile, and the split that it has decided for it.

    A long update publishes several times. If it is killed, the next one must not decide anew: what
    is left would fill up the shares in another way. Such an image is no source of the data set yet,
    so it has no entry.
    """

    content: str  # Digest that identifies the picture; see `ImageRecord.content`
    label: str
    split: Split
    group: str | None = None


class _Content(msgspec.Struct):
    """The parts of ``_dataset.json`` that must be there."""

    image: dict[str, Any]
    spec: dict[str, Any]
    settings: dict[str, Any]
    sources: list[ImageRecord]
    last_shard: Annotated[int, msgspec.Meta(ge=-1, lt=10**18)]
    last_update: Annotated[int, msgspec.Meta(ge=-1)]
    near_duplicates: tuple[DuplicatePair, ...] = ()
    folds: dict[str, Folds] = msgspec.field(default_factory=dict)
    waiting: tuple[UnassignedImage, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """A data set as its manifest describes it."""

    image: Field  # The image column
    entries: dict[str, ImageRecord]  # Entries by path
    # last_shard and last_update: The highest numbers so far, -1 where there was none
    last_shard: int
    last_update: int
    pairs: tuple[DuplicatePair, ...]  # Pairs of images that show the same place
    folds: dict[str, Folds]  # Folds by the prefix of their names
    content: dict[str, Any] = field(repr=False)  # The whole content of the manifest
    # Images that an update has not tiled yet, because it goes on or was killed
    waiting: tuple[UnassignedImage, ...] = field(default=(), repr=False)

    @classmethod
    def from_text(cls, text: str) -> DataSet:
        """Read ``_dataset.json``; see `from_json`."""
        try:
            content = msgspec.json.decode(text)
        except UNREADABLE as error:
            raise _no_manifest(error) from error
        return cls.from_json(content)

    @classmethod
    def from_json(cls, content: Any) -> DataSet:
        """Read the content of ``_dataset.json``."""
        try:
            known = msgspec.convert(content, _Content)
        except msgspec.ValidationError as error:
            raise _no_manifest(error) from error
        return cls(
            image=Field.from_metadata("image", known.image),
            entries={entry.source: entry for entry in known.sources},
            last_shard=known.last_shard,
            last_update=known.last_update,
            pairs=known.near_duplicates,
            folds=known.folds,
            content=content,
            waiting=known.waiting,
        )

    def check_settings(self, settings: TilingSettings) -> None:
        """Refuse to add tiles that were cut in another way.

        Zones may change, but not be missing: who forgets them would get all tiles without them. Nor
        may a table of groups: new images of a group could get another split.
        """
        former = {**TileSpec.from_json(self.content["spec"]).to_json(), **self.content["settings"]}
        now = {**settings.spec.to_json(), **settings.to_json()}
        for name in (*settings.spec.to_json(), *LASTING):
            # Data sets of earlier releases lack the settings that came later.
            if former.get(name) != now[name]:
                raise ConfigurationError(
                    f"{settings.output} was made with {name} {former.get(name)!r}, and this update "
                    f"says {now[name]!r}. Give the same, or tile into another output."
                )
        self._check_zones(former, settings)
        self._check_groups(str(former.get("labels", FOLDER)), settings)

    def _check_zones(self, former: dict[str, Any], settings: TilingSettings) -> None:
        """Refuse an update without the zones that the tiles keep off."""
        strip = ZoneRules(bottom_strip=settings.bottom_strip).digest("")
        tiled = [entry for entry in self.entries.values() if entry.status == TILED]
        if all(entry.zones in (None, strip) for entry in tiled):
            return
        for name, end in _ENDS_OF_ZONES.items():
            if former.get(name) and not getattr(settings, name):
                raise ConfigurationError(
                    f"{settings.output} was made with {name} {former[name]!r}, and this update has "
                    "none, so its images would be tiled again, with what the zones keep off. Give "
                    f"{name}. If the tiles are to show all, {end}."
                )

    def _check_groups(self, table: str, settings: TilingSettings) -> None:
        """Refuse an update without the table that gave the images their groups."""
        if settings.group is not None or not _is_table(table) or _is_table(settings.labels):
            return
        for entry in self.entries.values():
            by_hand = "group" in (entry.by_hand or ())
            if entry.status == TILED and entry.group is not None and not by_hand:
                raise ConfigurationError(
                    f"{settings.output} was made with labels {table!r}, which gives {entry.source} "
                    f"the group {entry.group!r}, and this update says {settings.labels!r}, so its "
                    "images would lose their groups. Give labels as before. If they are to have no "
                    "groups, give a table without the column group."
                )


def _is_table(rule: str) -> bool:
    return parse_rule(rule) == (None, None)


def _no_manifest(error: Exception) -> SchemaError:
    return SchemaError(
        f"_dataset.json is not the manifest of a data set of tiles: {error}. Nothing was done. "
        "Tile into another output, or look who wrote it."
    )


def build_manifest(
    settings: TilingSettings, image: Field, entries: Iterable[ImageRecord], versions: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of ``_dataset.json``."""
    return {
        "version": VERSION,
        "created": utc(datetime.now(UTC)),
        "spec": settings.spec.to_json(),
        "settings": settings.to_json(),
        "significant_bits": max_stored_value(image).bit_length(),
        **tables_of(image, entries),
        "versions": versions,
    }


def tables_of(image: Field, entries: Iterable[ImageRecord]) -> dict[str, Any]:
    """Return the part of a manifest that describes images and classes."""
    listed = sorted(entries, key=lambda entry: (entry.status != TILED, entry.source))
    rows = [entry for entry in listed if entry.has_rows]
    counts: dict[str, dict[str, int]] = {}
    for entry in rows:
        if entry.split is not None and entry.label is not None:
            by_class = counts.setdefault(entry.split, dict.fromkeys(image.classes, 0))
            by_class[entry.label] += entry.tiles
    return {
        "image": image.to_metadata(),
        "classes": list(image.classes),
        "tiles": sum(entry.tiles for entry in rows),
        "counts": counts,
        "sources": [entry.to_json() for entry in listed],
    }

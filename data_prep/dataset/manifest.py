"""What a data set of tiles holds, source by source, for who writes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from data_prep.dataset.schema import COLUMNS, max_stored_value
from data_prep.dataset.settings import TilingSettings
from data_prep.geometry.grid import TileSpec
from data_prep.splits.labels import FOLDER, parse_rule
from distkeras_grid.dataset.manifest import (
    TILED,
    ImageRecord,
    Manifest,
    convert_manifest,
    shard_number,
)
from distkeras_grid.dataset.versions import FOLDER as VERSIONS
from distkeras_grid.errors import UNREADABLE, ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import Field

# Layout of a data set. 1: one manifest, ``_dataset.json``, and shards without a run in their names.
LAYOUT = 2
# Columns of data sets whose manifest does not say how many they have, those of 0.1.0.
FIRST_COLUMNS = 26
# Keys without which a manifest describes no tiles.
REQUIRED = ("image", "spec", "settings", "sources", "last_shard", "last_update")
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


@dataclass(frozen=True)
class DataSet:
    """A version of a data set of tiles, as its manifest describes it."""

    image: Field  # The image column
    entries: dict[str, ImageRecord]  # Entries by path
    manifest: Manifest = field(repr=False)
    content: dict[str, Any] = field(repr=False)  # The whole content of the manifest

    @classmethod
    def from_text(cls, text: str | bytes, path: str = VERSIONS) -> DataSet:
        """Read the manifest that is the file `path`; see `from_json`."""
        try:
            content = msgspec.json.decode(text)
        except UNREADABLE as error:
            raise _no_manifest(path, str(error)) from error
        return cls.from_json(content, path)

    @classmethod
    def from_json(cls, content: Any, path: str = VERSIONS) -> DataSet:
        """Read the content of the manifest that is the file `path`."""
        manifest = convert_manifest(content, path)
        if missing := [name for name in REQUIRED if name not in content]:
            raise _no_manifest(path, f"it has no {missing[0]!r}")
        image = Field.from_metadata("image", manifest.image)
        entries = {entry.source: entry for entry in manifest.sources}
        return cls(image, entries, manifest, content)

    @property
    def shards(self) -> dict[int, str]:
        """The names of the shards, by number."""
        return {shard_number(name): name for name in self.manifest.shards}

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
        self._check_columns(settings)
        self._check_zones(former, settings)
        self._check_groups(str(former.get("labels", FOLDER)), settings)

    def _check_columns(self, settings: TilingSettings) -> None:
        """Refuse tiles with other columns: programs take those of one file for those of all."""
        columns = self.content.get("columns", FIRST_COLUMNS)
        if columns != len(COLUMNS):
            raise ConfigurationError(
                f"The tiles in {settings.output} have {columns} columns, and those of this release "
                f"{len(COLUMNS)}. Update them by the release that made them, or cut all tiles anew "
                "(--overwrite, or another output)."
            )

    def _check_zones(self, former: dict[str, Any], settings: TilingSettings) -> None:
        """Refuse an update without the zones that the tiles keep off."""
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


def _no_manifest(path: str, reason: str) -> SchemaError:
    return SchemaError(
        f"{path} is not the manifest of a data set of tiles: {reason}. Nothing was done. Tile into "
        "another output, or look who wrote it."
    )


def build_manifest(
    settings: TilingSettings, image: Field, entries: Iterable[ImageRecord], versions: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of a manifest; its number, time and hash come with its commit."""
    return {
        "version": LAYOUT,
        "spec": settings.spec.to_json(),
        "settings": settings.to_json(),
        "columns": len(COLUMNS),
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

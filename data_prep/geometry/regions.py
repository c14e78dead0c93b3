"""Parts of images that tiles keep off: data bars, scale bars, black rims; and regions to stay in.

Pure: `read_zones` takes the text of a table or of a GeoJSON file. Coordinates are pixels of the
original image, from its left and top edge.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from data_prep.geometry.polygons import Numbers, Polygon
from data_prep.splits.csv_table import read_csv
from distkeras_grid.errors import UNREADABLE, ConfigurationError, SchemaError

EXCLUDE, INCLUDE = "exclude", "include"
# At most this many unknown files are named.
SHOWN = 5
COLUMNS = ("file", "left", "top", "right", "bottom")
# Largest coordinate, pixels: far beyond any image, and small enough for exact arithmetic.
FARTHEST = 1e9
Transform = Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Zones:
    """The zones of one image."""

    excluded: tuple[Polygon, ...] = ()  # Polygons that no tile touches
    included: tuple[Polygon, ...] = ()  # If there are any, each tile lies in one of them
    # Distance by which the values of a zone spread beyond it when the image was enlarged, pixels
    reach: int = 0

    def __bool__(self) -> bool:
        return bool(self.excluded or self.included)

    def turned(self, transform: Transform) -> Zones:
        """Return the zones with all corners moved by a function of x and y."""

        def moved(polygons: tuple[Polygon, ...]) -> tuple[Polygon, ...]:
            return tuple(
                tuple(np.stack(transform(ring[:, 0], ring[:, 1]), axis=1) for ring in polygon)
                for polygon in polygons
            )

        return Zones(moved(self.excluded), moved(self.included), self.reach)

    def scaled(self, factor_x: float, factor_y: float) -> Zones:
        """Return the zones in pixels of the resampled image."""
        scaled = self.turned(lambda x, y: (x * factor_x, y * factor_y))
        largest = max(factor_x, factor_y)
        # Cubic interpolation reads two pixels on each side; averages of areas do not spread.
        return replace(scaled, reach=math.ceil(2 * largest) if largest > 1 else 0)


NO_ZONES = Zones()


@dataclass(frozen=True)
class Zone:
    """One polygon of a table or GeoJSON file, as plain numbers."""

    kind: str
    rings: tuple[Points, ...]


@dataclass(frozen=True)
class ZoneRules:
    """The zones of all images of a data set."""

    # Zones by the image's path below the input folder, as Unicode NFC
    by_file: Mapping[str, tuple[Zone, ...]] = field(default_factory=dict)
    bottom_strip: int = 0  # Number of rows at the bottom of every image that no tile touches

    def of(self, path: str, width: int, height: int) -> Zones:
        """Return the zones of one image of that size."""
        listed = list(self._listed(path))
        if self.bottom_strip:
            top = height - self.bottom_strip
            listed.append(_rectangle(EXCLUDE, 0, top, width, height))
        polygons: dict[str, list[Polygon]] = {EXCLUDE: [], INCLUDE: []}
        for zone in listed:
            rings = tuple(np.array(ring, dtype=np.float64) for ring in zone.rings)
            polygons[zone.kind].append(rings)
        return Zones(tuple(polygons[EXCLUDE]), tuple(polygons[INCLUDE]))

    def check_files(self, paths: Iterable[str]) -> None:
        """Refuse zones of missing images: a misspelt name would exclude nothing."""
        if unknown := sorted(set(self.by_file) - {_same_name(path) for path in paths}):
            raise SchemaError(
                f"zones name {len(unknown)} files that are not among the images. Received: "
                f"{', '.join(unknown[:SHOWN])}. Give paths below the input folder."
            )

    def digest(self, path: str) -> str | None:
        """Return a short hash of one image's zones, None if it has none."""
        listed = self._listed(path)
        if not listed and not self.bottom_strip:
            return None
        text = json.dumps([self.bottom_strip, [(zone.kind, zone.rings) for zone in listed]])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _listed(self, path: str) -> tuple[Zone, ...]:
        return self.by_file.get(_same_name(path), ())


def read_zones(text: str, name: str) -> dict[str, tuple[Zone, ...]]:
    """Read zones from the text of a table or of a GeoJSON file.

    `name`: name of the file; it ends in ``.csv``, ``.geojson`` or ``.json``. A table has the
    columns ``file``, ``left``, ``top``, ``right`` and ``bottom``, in pixels, and optionally
    ``kind``: ``exclude`` (default) or ``include``. GeoJSON is a FeatureCollection of polygons. The
    property ``file`` names the image, and the property ``kind`` is as in a table.
    """
    if name.lower().endswith(".csv"):
        pairs: Iterable[tuple[str, Zone]] = _table(text, name)
    elif name.lower().endswith((".geojson", ".json")):
        pairs = _geojson(text, name)
    else:
        raise ConfigurationError(f"zones are a .csv, .geojson or .json file. Received: {name!r}.")
    zones: dict[str, tuple[Zone, ...]] = {}
    for name_there, zone in pairs:
        file = _same_name(name_there)
        zones[file] = (*zones.get(file, ()), zone)
    return zones


def _table(text: str, name: str) -> Iterable[tuple[str, Zone]]:
    columns, rows = read_csv(text, name, SchemaError)
    if missing := set(COLUMNS) - set(columns):
        raise SchemaError(
            f"{name} lacks the columns {', '.join(sorted(missing))}. Received: "
            f"{', '.join(columns)}. It needs {', '.join(COLUMNS)}."
        )
    for number, row in rows:
        place = f"{name}, line {number}"
        if not row["file"]:
            raise SchemaError(f"{place}: the column file is empty. Name an image.")
        try:
            left, top, right, bottom = (float(row[column]) for column in COLUMNS[1:])
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"{place}: left, top, right and bottom are numbers. {error}."
            ) from error
        if not (-FARTHEST <= left < right <= FARTHEST and -FARTHEST <= top < bottom <= FARTHEST):
            raise SchemaError(
                f"{place}: left is less than right, and top less than bottom, all within "
                f"{FARTHEST:g} pixels. Received: {left:g}, {top:g}, {right:g}, {bottom:g}."
            )
        kind = _kind(row.get("kind"), place)
        yield row["file"], _rectangle(kind, left, top, right, bottom)


def _geojson(text: str, name: str) -> Iterable[tuple[str, Zone]]:
    try:
        content = json.loads(text)
    except UNREADABLE as error:
        raise SchemaError(f"{name} is not JSON: {error}. Export it again.") from error
    features = content.get("features") if isinstance(content, dict) else content
    if not isinstance(features, list):
        raise SchemaError(f"{name} is no FeatureCollection of GeoJSON. Export it as one.")
    for number, feature in enumerate(features):
        place = f"{name}, feature {number}"
        try:
            properties = feature.get("properties") or {}
            geometry = feature["geometry"]
            file, shape = properties["file"], geometry["type"]
            many = {"Polygon": [geometry["coordinates"]], "MultiPolygon": geometry["coordinates"]}
            polygons = [tuple(_ring(ring) for ring in polygon) for polygon in many[shape]]
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"{place}: expected a Polygon or MultiPolygon with a property 'file'. Received: "
                f"{type(error).__name__} {error}."
            ) from error
        kind = _kind(properties.get("kind"), place)
        for rings in polygons:
            yield str(file), Zone(kind, rings)


def _ring(points: Any) -> Points:
    ring = tuple((float(point[0]), float(point[1])) for point in points)
    if len(ring) > 1 and ring[0] == ring[-1]:
        ring = ring[:-1]
    if len(ring) < 3:
        raise ValueError(f"a ring of {len(ring)} points")
    # Written so that NaN is refused, too.
    if not all(-FARTHEST <= number <= FARTHEST for point in ring for number in point):
        raise ValueError(f"a point beyond {FARTHEST:g} pixels")
    return ring


def _same_name(path: str) -> str:
    """Return a path normalised for comparison: file systems write the same accents in two ways."""
    return unicodedata.normalize("NFC", path)


def _kind(kind: object, place: str) -> str:
    if kind in (None, ""):
        return EXCLUDE
    if kind not in (EXCLUDE, INCLUDE):
        raise SchemaError(f"{place}: kind is {EXCLUDE} or {INCLUDE}. Received: {kind!r}.")
    return str(kind)


def _rectangle(kind: str, left: float, top: float, right: float, bottom: float) -> Zone:
    return Zone(kind, (((left, top), (right, top), (right, bottom), (left, bottom)),))

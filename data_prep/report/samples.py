"""The pictures of a report: a few tiles of each class, and a few images as thumbnails."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.geometry.tiler import Tile
from data_prep.report.html import Corners, ReportImage
from distkeras_grid.dataset.manifest import ImageRecord
from distkeras_grid.feeding.arrays import features_from_arrow
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.storage import escaped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TILES_A_CLASS = 8
THUMBNAIL_PIXELS = 360
JPEG_QUALITY = 75
# Squares of tiles in one image, and in all images of a report. More are not read and not drawn.
IMAGE_SQUARES = 5_000
REPORT_SQUARES = 200_000
# Columns that say where a tile lies in its image.
PLACES = ("source", "angle", "src_cx", "src_cy", "scale")

Pixels = NDArray[Any]


def thumbnail(pixels: Pixels) -> bytes:
    """Return a small JPEG copy of an image; 16-bit values are stretched to their range."""
    height, width = pixels.shape[:2]
    scale = THUMBNAIL_PIXELS / max(height, width)
    if scale < 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        pixels = pixels.reshape(*pixels.shape[:2], -1)
    low, high = (0.0, 255.0) if pixels.dtype == np.uint8 else _range([pixels])
    return _jpeg(pixels, low, high)


def choose_images(labels: Mapping[str, str], number: int) -> list[str]:
    """Return some images, taking the classes in turn, in an order independent of names.

    Examples
    --------
    >>> sorted(choose_images({"a/0": "a", "a/1": "a", "b/0": "b"}, 2))[1]
    'b/0'
    """
    by_class: dict[str, list[str]] = {}
    for path in sorted(labels, key=lambda each: hashlib.sha256(each.encode()).digest()):
        by_class.setdefault(labels[path], []).append(path)
    ranked = [(rank, path) for paths in by_class.values() for rank, path in enumerate(paths)]
    return [path for _, path in sorted(ranked)[:number]]


def choose_tiles(
    rows: Sequence[tuple[str, str, str]], number: int = TILES_A_CLASS
) -> dict[str, list[str]]:
    """Return the ids of some tiles of each class, taking its images in turn."""
    ranked: dict[str, list[tuple[int, str]]] = {}
    ranks: dict[str, int] = {}
    for label, source, tile in sorted(rows, key=lambda row: row[2]):
        ranks[source] = ranks.get(source, -1) + 1
        ranked.setdefault(label, []).append((ranks[source], tile))
    return {label: [tile for _, tile in sorted(ranked[label])[:number]] for label in sorted(ranked)}


def look_up(
    spark: SparkSession,
    folders: Sequence[str],
    sources: Sequence[ImageRecord],
    angles: Sequence[float],
    image: Field,
    thumbnails: Mapping[str, bytes],
) -> ReportImage:
    """Return some tiles of each class, and the places of tiles in the images with thumbnails.

    `sources`: images; only a few are looked at.
    `angles`: angles; only tiles at these are looked at.
    """
    from pyspark.sql import functions as F

    if not folders:
        return ReportImage()
    root = folders[0].rpartition("/")[0]
    tiles = spark.read.option("basePath", root).parquet(*map(escaped, folders))
    by_angle = {row["angle"]: row["count"] for row in tiles.groupBy("angle").count().collect()}
    labels = {each.source: str(each.label) for each in sources}
    paths = choose_images(labels, TILES_A_CLASS * len(set(labels.values())))
    tiles = tiles.where(F.col("angle").isin(list(angles)))
    rows = tiles.where(F.col("source").isin(paths))
    records = rows.select("label_name", "source", "tile_id").collect()
    chosen = choose_tiles([(row[0], row[1], row[2]) for row in records])
    pictures = _pictures(rows, [tile for some in chosen.values() for tile in some], image)
    by_path = {each.source: each for each in sources}
    pictured = [by_path[path] for path in thumbnails if path in by_path]
    drawn = choose_drawn(pictured, by_angle, angles)
    places = tiles.where(F.col("source").isin(drawn))
    return ReportImage(
        tiles={name: [pictures[tile] for tile in some] for name, some in chosen.items()},
        thumbnails=dict(thumbnails),
        squares=squares_of(places.select(*PLACES).toArrow(), image.shape[0]),
        angles=by_angle,
    )


def choose_drawn(
    sources: Sequence[ImageRecord], by_angle: Mapping[float, int], angles: Sequence[float]
) -> list[str]:
    """Return the images whose tiles are drawn, so that the report stays small."""
    # An image has about the same part of its tiles at an angle as all images have.
    part = sum(by_angle.get(angle, 0) for angle in angles) / max(1, sum(by_angle.values()))
    chosen, left = [], float(REPORT_SQUARES)
    for each in sources:
        squares = each.tiles * part
        if squares <= min(left, IMAGE_SQUARES):
            chosen.append(each.source)
            left -= squares
    return chosen


def squares_of(table: pa.Table, side: int) -> dict[str, dict[float, Corners]]:
    """Return the corners of tiles in their images, arrays [tiles, 4, 2], by image and angle.

    `side`: side of a stored tile, pixels.
    """
    angles, *centres, scales = (table.column(name).to_numpy() for name in PLACES[1:])
    coded = table.column("source").combine_chunks().dictionary_encode()
    names, sources = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    squares: dict[str, dict[float, Corners]] = {}
    for angle in np.unique(angles).tolist():
        # A tile of one pixel gives the directions; the side is that of the stored tile.
        directions = np.array(Tile(np.zeros((1, 1), np.uint8), angle, 0, 0, 0.0, 0.0).corners())
        mine = np.flatnonzero(angles == angle)
        sides = (side / scales[mine])[:, None, None]
        corners = np.stack(centres, axis=-1)[mine, None] + directions * sides
        for number in np.unique(sources[mine]).tolist():
            squares.setdefault(names[number], {})[angle] = corners[sources[mine] == number]
    return squares


def _pictures(rows: DataFrame, ids: Sequence[str], image: Field) -> dict[str, bytes]:
    """Return tiles as JPEG files, by their ids."""
    from pyspark.sql import functions as F

    column = "image.bytes" if image.is_file else "image"
    wanted = rows.where(F.col("tile_id").isin(list(ids))).select("tile_id", column)
    stored = wanted.toArrow()
    names, contents = stored.column(0).to_pylist(), stored.column(1)
    if image.is_file:
        return dict(zip(names, contents.to_pylist(), strict=True))
    arrays = dict(zip(names, features_from_arrow(contents.combine_chunks(), image), strict=True))
    # All tiles have one scale, so that classes can be compared.
    low, high = (0.0, 255.0) if image.dtype == "uint8" else _range(list(arrays.values()))
    return {tile: _jpeg(pixels, low, high) for tile, pixels in arrays.items()}


def _range(images: Sequence[Pixels]) -> tuple[float, float]:
    low = min((float(each.min()) for each in images), default=0.0)
    high = max((float(each.max()) for each in images), default=1.0)
    return low, max(high, low + 1)


def _jpeg(pixels: Pixels, low: float, high: float) -> bytes:
    from PIL import Image

    scaled = (pixels.astype(np.float32) - low) * (255 / (high - low))
    eight = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    stream = BytesIO()
    picture = Image.fromarray(eight[:, :, 0] if eight.shape[2] == 1 else eight)
    picture.save(stream, "JPEG", quality=JPEG_QUALITY)
    return stream.getvalue()

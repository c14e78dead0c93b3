"""The two passes over the images that run on executors: look at each, then cut each.

Both are generators over Arrow batches, a few images in and 64 tiles out at a time: no row and no
batch ever holds all the tiles of an image.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.cutting import Cutting, significant_bits
from data_prep.digests import pixel_digest
from data_prep.geometry import TileSpec
from data_prep.images import as_channels
from data_prep.layout import Layout, lay_out
from data_prep.likeness import fingerprint
from data_prep.marks import find_marks
from data_prep.picture import Picture, Pixels
from data_prep.plan import Unit
from data_prep.sampling import Prepared, prepare
from data_prep.schema import SourceRow, encode, record_batch, spark_schema, white_of
from data_prep.split import SPLITS
from data_prep.tiles import Tile, group_by_base, iter_tiles
from data_prep.zones import Zones
from distkeras_grid.errors import ImageError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.partitions import partition_key

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BATCH_TILES = 64
# Neighbouring tiles from which the size of stored ones is measured: about one Parquet page.
SAMPLE_TILES = 32
SHOWN_MARKS = 6
ZSTD_LEVEL = 3
ROW_GROUP_BYTES = 24 << 20
PAGE_BYTES = 4 << 20

INSPECTED = (
    "uri string, sha256 string, width int, height int, channels int, dtype string, "
    "tile_bytes double, error string, notes string, pixel_sha256 string, bits int, "
    "tiles int, excluded int, uncovered double, uncovered_by_angle double, empty_angles int, "
    "pixel_size double, zones string, marks string, "
    "fingerprint binary"
)
UNITS = (
    "path string, ordinal int, key int, angles array<double>, source string, sha256 string, "
    "label int, label_name string, split string"
)

Batches = Iterator["pa.RecordBatch"]


@dataclass(frozen=True)
class Inspected:
    """What the first pass found out about one file; numbers are 0 where there is an error."""

    uri: str
    sha256: str
    width: int
    height: int
    channels: int
    dtype: str
    tile_bytes: float
    error: str | None
    notes: str | None = None
    pixel_sha256: str = ""
    bits: int = 0
    tiles: int = 0
    excluded: int = 0
    uncovered: float = 0.0
    uncovered_by_angle: float = 0.0
    empty_angles: int = 0
    pixel_size: float | None = None
    zones: str | None = None
    marks: str | None = None
    fingerprint: bytes = b""

    @property
    def content(self) -> str:
        """What identifies the picture: its pixels, or the bytes where those are not known."""
        return self.pixel_sha256 or self.sha256


def inspect_images(spark: SparkSession, images: DataFrame, cutting: Cutting) -> list[Inspected]:
    """Decode every image once, and tell what it is.

    Parameters
    ----------
    spark : SparkSession
    images : DataFrame
        With the columns ``path`` and ``content``.
    cutting : Cutting

    Returns
    -------
    list of Inspected
        Sorted by path.
    """
    with one_image_a_batch(spark):
        rows = images.select("path", "content").mapInArrow(inspector(cutting), INSPECTED).collect()
    return sorted((Inspected(**row.asDict()) for row in rows), key=lambda found: found.uri)


def inspector(cutting: Cutting) -> Callable[[Batches], Batches]:
    """Return the first pass, as it runs in a task."""

    def inspect(batches: Batches) -> Batches:
        import pyarrow as pa

        _use_one_thread()
        for batch in batches:
            found = [inspect_image(uri, content, cutting) for uri, content in _rows(batch)]
            yield pa.RecordBatch.from_pylist([vars(each) for each in found], _inspected_schema())

    return inspect


def inspect_image(uri: str, content: bytes, cutting: Cutting) -> Inspected:
    """Look at one file."""
    sha256 = hashlib.sha256(content).hexdigest()
    path = cutting.path_of(uri)
    try:
        ready = prepare(content, uri, path, cutting, cutting.channels)
        layout = _checked_layout(ready, uri, cutting)
        tile_bytes = stored_bytes(_sample(ready, cutting.spec), cutting)
        bits = _bits(ready.picture, cutting, uri)
    except ImageError as error:
        return Inspected(uri, sha256, 0, 0, 0, "", 0.0, str(error))
    height, width = ready.picture.pixels.shape[:2]
    channels = ready.pixels.shape[2]
    return Inspected(
        *(uri, sha256, width, height, channels, ready.pixels.dtype.name),
        tile_bytes=tile_bytes,
        error=None,
        notes="; ".join(ready.picture.notes) or None,
        pixel_sha256=pixel_digest(as_channels(ready.picture.pixels, channels)),
        bits=bits,
        pixel_size=ready.pixel_size,
        zones=cutting.zones.digest(path),
        marks=_marks(ready.picture.pixels, bits, cutting.zones.of(path, width, height)),
        fingerprint=fingerprint(ready.picture.pixels) if cutting.fingerprints else b"",
        **vars(layout),
    )


def _marks(pixels: Pixels, bits: int, zones: Zones) -> str | None:
    """Describe what seems to be drawn into an image and is not excluded yet."""
    found = [
        mark.describe()
        for mark in find_marks(pixels, (1 << bits) - 1)
        if not any(mark.lies_in(polygon) for polygon in zones.excluded)
    ]
    return "; ".join(found[:SHOWN_MARKS]) or None


def _checked_layout(ready: Prepared, uri: str, cutting: Cutting) -> Layout:
    """Return how the tiles of an image lie; there must be some."""
    height, width = ready.pixels.shape[:2]
    layout = lay_out(width, height, cutting.spec, ready.zones)
    if layout.tiles == 0 and layout.excluded:
        raise ImageError(f"{uri} has no tile that keeps off its zones. Take smaller tiles.")
    if layout.tiles == 0:
        raise ImageError(
            f"{uri} is {width}x{height}, too small for a tile of {cutting.spec.tile} at any angle. "
            "Take smaller tiles."
        )
    if cutting.encoding == "jpeg" and ready.pixels.dtype != np.uint8:
        raise ImageError(f"{uri} has 16 bits, which JPEG cannot hold. Use --encoding raw.")
    return layout


def _sample(ready: Prepared, spec: TileSpec) -> list[Tile]:
    # Oblique angles compress a little better than straight ones, and are most of them.
    angle = max(spec.angles, key=lambda angle: angle % 90 != 0)
    for angles in ([angle], None):
        tiles = iter_tiles(ready.pixels, spec, angles, zones=ready.zones)
        if sample := list(itertools.islice(tiles, SAMPLE_TILES)):
            return sample
    return []


def _bits(picture: Picture, cutting: Cutting, uri: str) -> int:
    """Return the significant bits of an image's values."""
    if picture.pixels.dtype == np.uint8:
        return 8
    bits = significant_bits(int(picture.pixels.max()), picture.bits)
    if cutting.bits is not None and bits > cutting.bits:
        raise ImageError(
            f"{uri} has values up to {picture.pixels.max()}, more than {cutting.bits} bits hold. "
            "Give a larger --bits, or leave it out by --glob."
        )
    return cutting.bits or bits


def stored_bytes(tiles: list[Tile], cutting: Cutting) -> float:
    """Return the bytes that a tile takes in a file, from a sample of neighbours."""
    import pyarrow as pa

    stored = b"".join(encode(tile.pixels, cutting.encoding, cutting.quality) for tile in tiles)
    compressed = pa.Codec("zstd", ZSTD_LEVEL).compress(stored, asbytes=True)
    return len(compressed) / len(tiles)


def tile_frame(
    spark: SparkSession, images: DataFrame, units: list[Unit], field: Field, cutting: Cutting
) -> DataFrame:
    """Return the tiles as a DataFrame, sorted by source, block of angles, angle, y and x.

    Parameters
    ----------
    spark : SparkSession
    images : DataFrame
        With the columns ``path`` and ``content``.
    units : list of Unit
        In the order of their partitions.
    field : Field
        The image column.
    cutting : Cutting
    """
    from pyspark.sql import functions as F

    rows = [
        (
            *(unit.source.uri, ordinal, partition_key(unit.partition), list(unit.angles)),
            *(unit.source.source, unit.source.sha256),
            *(field.classes.index(unit.source.label), unit.source.label, unit.source.split),
        )
        for ordinal, unit in enumerate(units)
    ]
    work = images.select("path", "content").join(
        F.broadcast(spark.createDataFrame(rows, UNITS)), "path"
    )
    partitions = units[-1].partition + 1
    return (
        work.repartition(partitions, F.col("key"))
        .sortWithinPartitions("ordinal")
        .mapInArrow(cutter(field, cutting), spark_schema(field))
    )


def cutter(field: Field, cutting: Cutting) -> Callable[[Batches], Batches]:
    """Return the second pass, as it runs in a task."""

    def cut(batches: Batches) -> Batches:
        _use_one_thread()
        for batch in batches:
            for row in batch.to_pylist():
                yield from cut_image(row, field, cutting)

    return cut


def cut_image(row: dict[str, Any], field: Field, cutting: Cutting) -> Batches:
    """Yield the tiles of one unit of work, 64 a batch."""
    content, uri = row["content"], row["path"]
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        raise ImageError(f"{uri} has changed since the job began. Run it again.")
    ready = prepare(content, uri, row["source"], cutting, field.shape[2])
    source = SourceRow(
        *(row["source"], row["sha256"], row["label"], row["label_name"], row["split"]),
        scale=ready.scale,
        pixel_size=ready.pixel_size,
    )
    white = white_of(field)
    for _, angles in group_by_base(row["angles"]):
        tiles = iter_tiles(ready.pixels, cutting.spec, angles, zones=ready.zones, white=white)
        while some := list(itertools.islice(tiles, BATCH_TILES)):
            yield record_batch(some, source, cutting, field)


def write_tiles(spark: SparkSession, tiles: DataFrame, field: Field, output: str) -> None:
    """Write tiles that are cut meanwhile; see `write_splits`."""
    with one_image_a_batch(spark):
        write_splits(spark, tiles, field, output)


def write_splits(spark: SparkSession, rows: DataFrame, field: Field, output: str) -> None:
    """Write Parquet files, one folder a split."""
    column = "image" if field.encoding == "raw" else "image.bytes"
    options = {
        "compression": "zstd",
        "parquet.compression.codec.zstd.level": ZSTD_LEVEL,
        "parquet.block.size": ROW_GROUP_BYTES,
        # Overlapping tiles share pixels, and compression sees only what stands in one page.
        "parquet.page.size": PAGE_BYTES,
        # Sizes are checked every so many rows; with the defaults for narrow rows a page of tiles
        # would grow to hundreds of megabytes.
        "parquet.page.size.row.check.min": 4,
        "parquet.page.size.row.check.max": 16,
        "parquet.block.size.row.check.min": 16,
        "parquet.block.size.row.check.max": 64,
        f"parquet.enable.dictionary#{column}": "false",
    }
    # Without a writer for each split Spark would sort all tiles by it.
    writers = {"spark.sql.maxConcurrentOutputFileWriters": str(len(SPLITS) + 1)}
    with settings(spark, writers):
        writer = rows.write.mode("errorifexists").partitionBy("split")
        writer.options(**{name: str(value) for name, value in options.items()}).parquet(output)


def one_image_a_batch(spark: SparkSession) -> Any:
    """Hand images to Python one by one; the default is up to 10,000 in one piece of memory."""
    return settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"})


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """Change settings of the session for a while."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


def _use_one_thread() -> None:
    """Keep OpenCV to the one core that a Spark task has."""
    import cv2

    cv2.setNumThreads(1)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
    paths, contents = batch.column("path"), batch.column("content")
    for i in range(batch.num_rows):
        yield paths[i].as_py(), contents[i].as_py()


def _inspected_schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "int": pa.int32(),
        "double": pa.float64(),
        "binary": pa.binary(),
    }
    pairs = (entry.split() for entry in INSPECTED.split(", "))
    return pa.schema([(name, kinds[kind]) for name, kind in pairs])

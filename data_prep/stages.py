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

from data_prep.digests import pixel_digest
from data_prep.geometry import TileSpec, count_tiles
from data_prep.images import as_channels, read_image
from data_prep.picture import Choice
from data_prep.plan import Unit
from data_prep.schema import SourceRow, encode, record_batch, spark_schema
from data_prep.split import SPLITS
from data_prep.tiles import Tile, group_by_base, iter_tiles
from distkeras_grid.errors import ImageError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.partitions import partition_key

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BATCH_TILES = 64
# Neighbouring tiles from which the size of stored ones is measured: about one Parquet page.
SAMPLE_TILES = 32
ZSTD_LEVEL = 3
ROW_GROUP_BYTES = 24 << 20
PAGE_BYTES = 4 << 20

INSPECTED = (
    "uri string, sha256 string, width int, height int, channels int, dtype string, "
    "tile_bytes double, error string, notes string, pixel_sha256 string"
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

    @property
    def content(self) -> str:
        """What identifies the picture: its pixels, or the bytes where those are not known."""
        return self.pixel_sha256 or self.sha256


@dataclass(frozen=True)
class Cutting:
    """How tiles are made and stored.

    Parameters
    ----------
    spec : TileSpec
    encoding : str
    quality : int
    channels : int or None
        Convert to so many; None keeps what an image has.
    choice : Choice
        Which image to take from files that hold several.
    """

    spec: TileSpec
    encoding: str
    quality: int
    channels: int | None
    choice: Choice


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
    spec = cutting.spec
    try:
        picture = read_image(content, uri, cutting.choice)
        pixels = picture.pixels
        if cutting.channels is not None:
            pixels = as_channels(pixels, cutting.channels)
        height, width, channels = pixels.shape
        if count_tiles(width, height, spec) == 0:
            raise ImageError(
                f"{uri} is {width}x{height}, too small for a tile of {spec.tile} at any angle. "
                "Take smaller tiles."
            )
        if cutting.encoding == "jpeg" and pixels.dtype != np.uint8:
            raise ImageError(f"{uri} has 16 bits, which JPEG cannot hold. Use --encoding raw.")
        # Oblique angles compress a little better than straight ones, and are most of them.
        angle = max(spec.angles, key=lambda angle: angle % 90 != 0)
        sample = list(itertools.islice(iter_tiles(pixels, spec, [angle]), SAMPLE_TILES))
        sample = sample or list(itertools.islice(iter_tiles(pixels, spec), SAMPLE_TILES))
        tile_bytes = stored_bytes(sample, cutting)
    except ImageError as error:
        return Inspected(uri, sha256, 0, 0, 0, "", 0.0, str(error))
    dtype = pixels.dtype.name
    notes = "; ".join(picture.notes) or None
    digest = pixel_digest(pixels)
    return Inspected(uri, sha256, width, height, channels, dtype, tile_bytes, None, notes, digest)


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
    pixels = as_channels(read_image(content, uri, cutting.choice).pixels, field.shape[2])
    source = SourceRow(row["source"], row["sha256"], row["label"], row["label_name"], row["split"])
    for _, angles in group_by_base(row["angles"]):
        tiles = iter_tiles(pixels, cutting.spec, angles)
        while some := list(itertools.islice(tiles, BATCH_TILES)):
            yield record_batch(some, source, cutting.spec, field, cutting.quality)


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

    kinds = {"string": pa.string(), "int": pa.int32(), "double": pa.float64()}
    pairs = (entry.split() for entry in INSPECTED.split(", "))
    return pa.schema([(name, kinds[kind]) for name, kind in pairs])

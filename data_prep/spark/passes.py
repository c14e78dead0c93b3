"""The two passes over the images that run on executors: inspect each, then cut each.

Each reads and decodes an image once. Both are generators over Arrow batches, one image in and 64
tiles out at a time: no row and no batch ever holds all the tiles of an image.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from data_prep.dataset.schema import (
    COLUMNS,
    NULLABLE,
    encode,
    max_stored_value,
    measures_of,
    record_batch,
    schema_of,
)
from data_prep.geometry.filters import passes_filter
from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tile_layout import TileLayout, lay_out
from data_prep.geometry.tiler import Tile, group_by_base, iter_tiles
from data_prep.geometry.tiling_config import TilingConfig, significant_bits
from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.crash_isolation import LATER, IsolationPolicy
from data_prep.images.file_access import FileOpener, OpenFile
from data_prep.images.image_stats import survey
from data_prep.images.intensity import range_from_columns, range_to_columns
from data_prep.images.plane_selection import DecodedPlane
from data_prep.images.preprocess import PreparedImage, converted, prepare
from data_prep.report.samples import thumbnail
from data_prep.spark.scan import (
    CHANGED,
    Batches,
    Reader,
    assigned_rows,
    content_of,
    one_image_a_batch,
    settings,
    use_one_thread,
)
from data_prep.splits.assign import SPLITS
from data_prep.splits.fingerprint import fingerprint
from distkeras_grid.dataset.manifest import ImageRecord
from distkeras_grid.errors import ImageError, UnreadableImageError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.partitions import partition_key

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from data_prep.spark.image_reports import Reports

BATCH_TILES = 64
# Number of neighbouring tiles that are encoded to measure their size: about one Parquet page.
SAMPLE_TILES = 32
ZSTD_LEVEL = 3
ROW_GROUP_BYTES = 24 << 20
PAGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ImageScan:
    """What the first pass found in one file; numbers are 0 if there is an error.

    `tile_bytes` is the size of a tile as it will be stored, measured on a sample. Few images have a
    `thumbnail`. `pass_rate` is the part of the tiles at the first angle that meets the conditions
    of the cutting. `low` and `high` become 0 and white when the image is normalised, or `stain`
    describes its stains. `width` and `height` are those of the file, `cut_width` and `cut_height`
    those of the image that is cut, which may be resampled. `version` tells whether a large file has
    changed since; see `data_prep.images.file_access.OpenFile`.
    """

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
    empty_angles: int = 0
    pixel_size: float | None = None
    zones: str | None = None
    fingerprint: bytes = b""
    thumbnail: bytes | None = field(default=None, repr=False)
    low: float | None = None
    high: float | None = None
    pass_rate: float = 1.0
    stain: str | None = None
    cut_width: int = 0
    cut_height: int = 0
    version: str = ""

    @property
    def content(self) -> str:
        """What identifies the picture: its pixels, or the bytes where those are not known."""
        return self.pixel_sha256 or self.sha256


@dataclass(frozen=True)
class TileMeasure:
    """What the first pass measures: the image, and the tiles that it will give."""

    cutting: TilingConfig
    shown: frozenset[str] = frozenset()  # Images of which there is a thumbnail, by whole path

    record = ImageScan

    def __call__(self, uri: str, content: OpenFile) -> ImageScan:
        """Describe an image of which nothing has been read."""
        return inspect_image(uri, content, self.cutting, is_shown=uri in self.shown)

    def failure(self, uri: str, error: ImageError) -> ImageScan:
        """Return why an image cannot be tiled."""
        return refused(uri, str(error))


def refused(uri: str, reason: str) -> ImageScan:
    """Return why an image cannot be tiled."""
    return ImageScan(uri, "", 0, 0, 0, "", 0.0, reason)


def inspect_image(
    uri: str, content: OpenFile, cutting: TilingConfig, *, is_shown: bool = False
) -> ImageScan:
    """Look at one file, of which nothing has been read."""
    # A large file is not read once more for its digest.
    content.follow()
    try:
        with closing(prepare(content.stream, uri, cutting.path_of(uri), cutting)) as ready:
            scan = _look_at(ready, uri, cutting, is_shown=is_shown)
        scan = replace(scan, sha256=content.sha256(), version=content.version)
    except UnreadableImageError as error:
        return refused(uri, str(error))
    except ImageError as error:
        scan = refused(uri, str(error))
    # A server that does not answer looks the same.
    return refused(uri, f"{uri} {CHANGED}. Run it again.") if content.is_changed else scan


def _look_at(ready: PreparedImage, uri: str, cutting: TilingConfig, *, is_shown: bool) -> ImageScan:
    """Look at a file; its digest is left out."""
    path, picture = cutting.path_of(uri), ready.picture
    layout = _checked_layout(ready, uri, cutting)
    stats = survey(picture.pixels, cutting.channels, cutting.normalising)
    if cutting.normalising is not None and stats.value_range is None:
        raise ImageError(
            f"{uri} does not show two stains in colours of 8 bits. Leave it out by --on-error skip."
        )
    if stats.is_gray and cutting.channels is None:
        ready = replace(ready, pixels=converted(ready.pixels, 1))
    if stats.value_range is not None:
        ready = ready.normalised(stats.value_range)
    # Normalised values use all bits of their type.
    bits = (
        _bits(picture, stats.highest, cutting, uri)
        if stats.value_range is None
        else 8 * picture.pixels.dtype.itemsize
    )
    with closing(ready):
        if isinstance(ready.pixels, ChunkedImage) and ready.scale == (1.0, 1.0):
            # Avoids decoding all its blocks to find the largest value, which is known.
            ready.pixels.set_max(stats.highest_as_cut(picture.pixels.dtype))
        tile_bytes = stored_bytes(_sample(ready, cutting.spec), cutting.encoding, cutting.quality)
        pass_rate = _pass_rate(ready, bits, cutting)
    height, width, channels = *picture.pixels.shape[:2], ready.pixels.shape[2]
    low, high, stain = range_to_columns(stats.value_range)
    return ImageScan(
        *(uri, "", width, height, channels, ready.pixels.dtype.name),
        tile_bytes=tile_bytes,
        error=None,
        notes="; ".join(picture.notes) or None,
        pixel_sha256=stats.pixel_sha256,
        bits=bits,
        pixel_size=ready.pixel_size,
        zones=cutting.zones.digest(path),
        fingerprint=fingerprint(stats.small, stats.shrink) if cutting.fingerprints else b"",
        thumbnail=thumbnail(stats.small) if is_shown else None,
        pass_rate=pass_rate,
        low=low,
        high=high,
        stain=stain,
        cut_width=ready.pixels.shape[1],
        cut_height=ready.pixels.shape[0],
        **vars(layout),
    )


def _checked_layout(ready: PreparedImage, uri: str, cutting: TilingConfig) -> TileLayout:
    """Return the layout of an image's tiles; there must be at least one tile."""
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


def _pass_rate(ready: PreparedImage, bits: int, cutting: TilingConfig) -> float:
    """Return the part of the tiles that meets the conditions, from those at the first angle."""
    if not cutting.keep:
        return 1.0
    for angle in cutting.spec.angles:
        tiles = iter_tiles(
            ready.pixels, cutting.spec, [angle], zones=ready.zones, white=(1 << bits) - 1
        )
        if passes := [_passes_filter(tile, cutting) for tile in tiles]:
            return sum(passes) / len(passes)
    return 1.0


def _passes_filter(tile: Tile, cutting: TilingConfig) -> bool:
    quality = tile.quality
    if quality is None or not cutting.keep:
        return True
    return passes_filter(cutting.keep, measures_of(tile, quality))


def _sample(ready: PreparedImage, spec: TileSpec) -> list[Tile]:
    # Most angles are oblique, and their tiles compress a little better than straight ones.
    angle = max(spec.angles, key=lambda angle: angle % 90 != 0)
    for angles in ([angle], None):
        tiles = iter_tiles(ready.pixels, spec, angles, zones=ready.zones)
        if sample := list(itertools.islice(tiles, SAMPLE_TILES)):
            return sample
    return []


def _bits(picture: DecodedPlane, highest: int, cutting: TilingConfig, uri: str) -> int:
    """Return the significant bits of an image's values."""
    if picture.pixels.dtype == np.uint8:
        return 8
    bits = significant_bits(highest, picture.bits)
    if cutting.bits is not None and bits > cutting.bits:
        raise ImageError(
            f"{uri} has values up to {highest}, more than {cutting.bits} bits hold. "
            "Give a larger --bits, or leave it out by --glob."
        )
    return cutting.bits or bits


def stored_bytes(tiles: list[Tile], encoding: str, quality: int) -> float:
    """Return the stored size of a tile in bytes, measured on neighbouring tiles."""
    import pyarrow as pa

    stored = b"".join(encode(tile.pixels, encoding, quality) for tile in tiles)
    compressed = pa.Codec("zstd", ZSTD_LEVEL).compress(stored, asbytes=True)
    return len(compressed) / len(tiles)


def tile_frame(
    spark: SparkSession,
    tasks: Sequence[Sequence[ImageRecord]],
    scans: Mapping[str, ImageScan],
    reader: Reader,
    field: Field,
    cutting: TilingConfig,
    reports: Accumulator[Reports] | None = None,
) -> DataFrame:
    """Return the tiles as a DataFrame, in the order of `iter_tiles`, image by image.

    `tasks`: the images of each task. `scans`: those of all images, by path.
    """
    import pyarrow as pa

    images = [image for task in tasks for image in task]
    keys = [partition_key(number) for number, task in enumerate(tasks) for _ in task]
    rows = {
        "path": [scans[image.source].uri for image in images],
        "ordinal": pa.array(range(len(images)), pa.int32()),
        "key": pa.array(keys, pa.int32()),
        "version": [scans[image.source].version for image in images],
        "image": [encode_record(image) for image in images],
    }
    work = assigned_rows(spark, pa.table(rows), len(tasks), reader)
    cut = cutter(
        *(field, cutting, reader.opening, reports),
        tolerant=reader.tolerant,
        isolation=reader.isolation,
    )
    return work.mapInArrow(cut, schema_of(field, COLUMNS, NULLABLE))


def encode_record(image: ImageRecord) -> str:
    """Return the record of an image as it travels to the task that cuts it."""
    return msgspec.json.encode(image).decode()


def _decode_record(row: Mapping[str, Any]) -> ImageRecord:
    return msgspec.json.decode(row["image"], type=ImageRecord)


def cutter(
    field: Field,
    cutting: TilingConfig,
    opening: FileOpener,
    reports: Accumulator[Reports] | None = None,
    *,
    tolerant: bool,
    isolation: IsolationPolicy = LATER,
) -> Callable[[Batches], Batches]:
    """Return the function of a task of the second pass.

    An image that differs from what the first pass saw gives no tiles, if that is tolerated; the
    driver notices that it is missing, and `reports` say why.
    """

    def cut(batches: Batches) -> Batches:
        use_one_thread()
        with isolation.trials() as trials:
            for row in (row for batch in batches for row in batch.to_pylist()):
                with ExitStack() as resources:
                    try:
                        if trials is not None:
                            trials.survive(*(row["path"], _trial_cut, row, opening, field, cutting))
                        with isolation.in_time():
                            content = resources.enter_context(content_of(row, opening))
                            ready = resources.enter_context(
                                closing(_prepared(row, content, field, cutting))
                            )
                    except ImageError as error:
                        if not tolerant:
                            raise
                        if reports is not None:
                            reports.add({str(_decode_record(row).sha256): str(error)})
                        continue
                    yield from isolation.each_in_time(
                        cut_image(_decode_record(row), ready, field, cutting, reports)
                    )
                    if isinstance(ready.pixels, ChunkedImage):
                        # Ends this attempt of the task, because its tiles may be of two images.
                        # The next attempt sees another digest.
                        _check_unchanged(row, content)

    return cut


def _check_unchanged(row: Mapping[str, Any], content: OpenFile) -> None:
    if content.is_changed:
        raise ImageError(f"{row['path']} {CHANGED}. Run it again.")


def _prepared(
    row: dict[str, Any], content: OpenFile, field: Field, cutting: TilingConfig
) -> PreparedImage:
    image = _decode_record(row)
    # A file is known by its version, where it has one, so that a large one is not read once more.
    is_known = row.get("version") and row["version"] == content.version
    if not is_known and content.sha256() != image.sha256:
        raise ImageError(f"{row['path']} {CHANGED}. Run it again.")
    value_range = range_from_columns(image.low, image.high, image.stain)
    stream, path = content.stream, row["path"]
    ready = prepare(stream, path, image.source, cutting, field.shape[2], value_range)
    if not isinstance(ready.pixels, ChunkedImage):
        # All is decoded. The bytes need not stay in memory in addition to the pixels.
        _check_unchanged(row, content)
        stream.close()
    return ready


def cut_image(
    image: ImageRecord,
    ready: PreparedImage,
    field: Field,
    cutting: TilingConfig,
    reports: Accumulator[Reports] | None = None,
) -> Batches:
    """Yield the kept tiles of one image, 64 in a batch; report how many were dropped."""
    white, lost = max_stored_value(field), 0
    for _, angles in group_by_base(cutting.spec.angles):
        tiles = iter_tiles(ready.pixels, cutting.spec, angles, zones=ready.zones, white=white)
        while some := list(itertools.islice(tiles, BATCH_TILES)):
            good = [tile for tile in some if _passes_filter(tile, cutting)]
            lost += len(some) - len(good)
            if good:
                yield record_batch(good, image, ready.scale, cutting, field)
    if reports is not None and cutting.keep:
        reports.add({str(image.sha256): lost})


def _trial_cut(
    row: dict[str, Any], opening: FileOpener, field: Field, cutting: TilingConfig
) -> Iterator[None]:
    """Cut an image, to see whether the process survives it."""
    use_one_thread()
    with (
        content_of(row, opening) as content,
        closing(_prepared(row, content, field, cutting)) as ready,
    ):
        for _ in cut_image(_decode_record(row), ready, field, cutting):
            yield


def write_tiles(
    spark: SparkSession, tiles: DataFrame, field: Field, output: str, *, rows_of_a_file: int = 0
) -> None:
    """Write tiles that are cut while they are written: Parquet files, a folder for each split."""
    column = "image.bytes" if field.is_file else "image"
    options = {
        "compression": "zstd",
        "maxRecordsPerFile": rows_of_a_file,
        "parquet.compression.codec.zstd.level": ZSTD_LEVEL,
        "parquet.block.size": ROW_GROUP_BYTES,
        # Overlapping tiles share pixels, and compression sees only what stands in one page.
        "parquet.page.size": PAGE_BYTES,
        # Sizes are checked every so many rows; with the defaults, which suit narrow rows, a page
        # of tiles would grow to hundreds of megabytes.
        "parquet.page.size.row.check.min": 4,
        "parquet.page.size.row.check.max": 16,
        "parquet.block.size.row.check.min": 16,
        "parquet.block.size.row.check.max": 64,
        f"parquet.enable.dictionary#{column}": "false",
    }
    # Without a writer for each split, Spark would sort all tiles by split.
    writers = {"spark.sql.maxConcurrentOutputFileWriters": str(len(SPLITS) + 1)}
    with one_image_a_batch(spark), settings(spark, writers):
        writer = tiles.write.mode("errorifexists").partitionBy("split")
        writer.options(**{name: str(value) for name, value in options.items()}).parquet(output)

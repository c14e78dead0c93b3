"""The columns of a data set of tiles, and how tiles become rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tile_quality import OF_PIXELS, Quality, quality_of
from data_prep.geometry.tiler import Tile
from data_prep.geometry.tiling_config import TilingConfig
from distkeras_grid.dataset.manifest import ImageRecord
from distkeras_grid.feeding.delta_encoding import as_differences
from distkeras_grid.feeding.schema import Field

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

IMAGE_COLUMN = "image"
# Name, Spark type, and content of each column; the image column precedes them. New ones come last:
# a manifest says how many its tiles have.
COLUMNS = (
    ("encoding", "string", "raw, difference, png or jpeg"),
    ("height", "int", "pixels"),
    ("width", "int", "pixels"),
    ("channels", "int", "1, or 3: red, green, blue"),
    ("dtype", "string", "uint8 or uint16, little-endian"),
    ("label", "int", "number of the class"),
    ("label_name", "string", "name of the class"),
    ("split", "string", "train, validation or test; one for all tiles of a source"),
    ("source", "string", "path of the image below the input folder"),
    ("source_sha256", "string", "of the image file's bytes"),
    ("page", "int", "page of the image file"),
    ("original", "int", "1: one of the tiles that include_original adds, else 0"),
    ("x", "int", "left edge in the frame of the turned image, pixels"),
    ("y", "int", "top edge in the frame of the turned image, pixels"),
    ("src_cx", "double", "the tile's centre in the source, pixels from the left edge"),
    ("src_cy", "double", "the tile's centre in the source, pixels from the top edge"),
    ("angle", "double", "degrees, counter-clockwise"),
    ("scale", "double", "width of a source pixel in tile pixels"),
    ("pixel_size", "double", "width of a tile pixel, micrometres; null where it is not known"),
    ("outside", "double", "part of the tile that lies outside the image, and is black"),
    ("tile_id", "string", "hash of source, position and how it was cut and stored"),
    ("bg_fraction", "double", "part of the tile that is flat, without texture"),
    ("mean", "double", "of the stored values, all channels"),
    ("std", "double", "of the stored values, all channels"),
    ("focus", "double", "mean difference of neighbouring pixels, as a part of the full range"),
    ("saturated", "double", "part of the values that are white"),
)
NULLABLE = ("pixel_size",)
# What else calls these types otherwise.
ARROW_TYPES, SPARK_TYPES = {"int": "int32"}, {"int": "integer"}


def image_field(
    spec: TileSpec, channels: int, dtype: str, encoding: str, classes: tuple[str, ...], bits: int
) -> Field:
    """Return the description of the image column; the model sees values from 0 to 1."""
    side = spec.tile
    return Field(
        IMAGE_COLUMN,
        (side, side, channels),
        dtype=dtype,
        scale=1 / ((1 << bits) - 1),
        encoding=encoding,
        classes=classes,
    )


def max_stored_value(field: Field) -> int:
    """Return the stored value that the model sees as 1."""
    return round(1 / field.scale)


def schema_of(
    field: Field, columns: Iterable[tuple[str, str, str]], nullable: Collection[str] = ()
) -> StructType:
    """Return the Spark schema of an image column and of others: name, type and comment.

    The image column carries `field` in its metadata.
    """
    from pyspark.sql import types

    image: types.DataType = types.BinaryType()
    if field.is_file:
        # The same struct as in Hugging Face data sets, whose readers show the pictures.
        image = types.StructType().add("bytes", "binary", False).add("path", "string", False)
    schema = types.StructType().add(field.name, image, False, field.to_metadata())
    for name, kind, comment in columns:
        schema.add(name, SPARK_TYPES.get(kind, kind), name in nullable, {"comment": comment})
    return schema


def record_batch(
    tiles: Sequence[Tile],
    image: ImageRecord,
    scale: tuple[float, float],
    cutting: TilingConfig,
    field: Field,
) -> pa.RecordBatch:
    """Return tiles of one image as rows.

    A column that is not named here has the values of the attribute of this name of a tile, or else
    of the image's record.

    `scale`: width and height of a pixel of the image in pixels of its tiles.
    """
    import pyarrow as pa

    height, width, channels = field.shape
    white = max_stored_value(field)
    measures = [measures_of(tile, tile.quality or quality_of(tile.pixels, white)) for tile in tiles]
    identities = [cutting.tile_id(str(image.sha256), channels, tile) for tile in tiles]
    constants: dict[str, Any] = {
        "encoding": field.encoding,
        "height": height,
        "width": width,
        "channels": channels,
        "dtype": field.dtype,
        "label": field.classes.index(str(image.label)),
        "label_name": image.label,
        "source_sha256": image.sha256,
        "page": cutting.choice.page or 0,
        "scale": scale[0],
    }
    values: dict[str, list[Any]] = {
        **{name: [value] * len(tiles) for name, value in constants.items()},
        **{name: [each[name] for each in measures] for name in measures[0]},
        # In pixels of the source, which may have been resampled before cutting.
        "src_cx": [tile.src_cx / scale[0] for tile in tiles],
        "src_cy": [tile.src_cy / scale[1] for tile in tiles],
        "tile_id": identities,
        "original": [int(tile.original) for tile in tiles],
    }
    for name in [name for name, _, _ in COLUMNS if name not in values]:
        owners = tiles if hasattr(tiles[0], name) else [image] * len(tiles)
        values[name] = [getattr(each, name) for each in owners]
    arrays = [pa.array(values[name], ARROW_TYPES.get(kind, kind)) for name, kind, _ in COLUMNS]
    stored = [encode(tile.pixels, field.encoding, cutting.quality) for tile in tiles]
    images = pa.array(stored, pa.binary())
    if field.is_file:
        paths = pa.array([f"{identity}.{field.encoding}" for identity in identities], pa.string())
        images = pa.StructArray.from_arrays([images, paths], names=["bytes", "path"])
    names = [IMAGE_COLUMN, *(name for name, _, _ in COLUMNS)]
    return pa.RecordBatch.from_arrays([images, *arrays], names=names)


def measures_of(tile: Tile, quality: Quality) -> dict[str, float]:
    """Return the measured values of a tile, by the names of the columns."""
    return {**{name: getattr(quality, name) for name in OF_PIXELS}, "outside": tile.outside}


def encode(pixels: NDArray[Any], encoding: str, quality: int) -> bytes:
    """Return the bytes of a tile as they are stored."""
    if encoding == "raw":
        return pixels.tobytes()  # C order; all our machines are little-endian
    if encoding == "difference":
        return as_differences(pixels).tobytes()
    if encoding == "png":
        return as_png(pixels)
    from PIL import Image

    stream = BytesIO()
    gray = pixels.shape[2] == 1
    Image.fromarray(pixels[:, :, 0] if gray else pixels).save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def as_png(pixels: NDArray[Any]) -> bytes:
    """Return an image as a PNG file, without loss.

    `pixels`: three channels are red, green and blue; shape (height, width, 1 or 3).
    """
    # OpenCV has blue first. It writes 16 bits, which Pillow does for gray only.
    _, content = cv2.imencode(".png", np.ascontiguousarray(pixels[:, :, ::-1]))
    return content.tobytes()

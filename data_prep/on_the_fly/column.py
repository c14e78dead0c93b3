"""Tiles that are not cut yet: a row says where a tile lies, and reading the row cuts the tile.

Such a column has the encoding ``tile``. It is read like any encoded column: by a worker before it
trains, by a task that predicts, and by the driver for validation data. A row takes about 200 bytes.
A worker cuts its tiles once, image by image, into its local file. If they would take more than half
of the free space, it cuts them again for every batch.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tiler import crop_tile
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.file_access import OpenFile, open_local, open_web
from data_prep.images.intensity import ValueRange, range_from_columns
from data_prep.images.open_image import MAX_PIXELS
from data_prep.images.plane_selection import Pixels, PlaneSelector
from data_prep.images.preprocess import PreparedImage, prepare
from distkeras_grid.errors import (
    UNREADABLE,
    ConfigurationError,
    ImageError,
    PathNotFoundError,
    SchemaError,
    StorageError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.rows import aligned_empty
from distkeras_grid.webhdfs.addresses import WEB_SCHEMES, find_address, parse_path
from distkeras_grid.webhdfs.connection import WebHdfsConnection

# Bytes of decoded images that a process keeps. Rows are cut image by image, so one image would do;
# more help where tiles are cut again for each batch. They stay in memory while the worker trains.
CACHE_BYTES = 64 << 20
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How images are read and rotated; the same for all tiles of a column."""

    interpolation: str  # interpolation and edge: See `TileSpec`
    edge: str
    choice: PlaneSelector  # Page, channel and focal plane that are taken from each file
    # pixel_size and source_pixel_size: Side of a pixel to which images are resampled, and what
    # replaces the side that their files state, micrometres
    pixel_size: Positive | None = None
    source_pixel_size: Positive | None = None
    # Larger images that can only be decoded as a whole are refused
    max_pixels: Annotated[int, msgspec.Meta(ge=1)] = MAX_PIXELS

    @classmethod
    def of(cls, spec: TileSpec, cutting: TilingConfig) -> Self:
        """Return the recipe for the images of a cutting."""
        return cls(
            *(spec.interpolation, spec.edge, cutting.choice),
            *(cutting.pixel_size, cutting.source_pixel_size, cutting.max_pixels),
        )

    def to_text(self) -> str:
        """Return the recipe as `Field.recipe`; what has its default is left out."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `to_text` wrote."""
        try:
            return msgspec.json.decode(text, type=cls)
        except UNREADABLE as error:
            raise SchemaError(
                f"The recipe of a column of tiles cannot be read. Received: {text!r}. Make the "
                "column with data_prep.cut."
            ) from error

    def cutting(self, tile: int, channels: int) -> TilingConfig:
        """Return the cutting for tiles of this side and number of channels."""
        try:
            spec = TileSpec(tile, interpolation=self.interpolation, edge=self.edge)
        except ConfigurationError as error:
            raise SchemaError(f"The recipe of a column of tiles is not usable: {error}") from error
        return TilingConfig(
            *(spec, "raw", 0, channels, self.choice),
            pixel_size=self.pixel_size,
            source_pixel_size=self.source_pixel_size,
            max_pixels=self.max_pixels,
        )


class TilePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of a tile: its image, angle and position."""

    uri: str  # The image: ``file:/path``, ``/path``, ``hdfs://...`` or ``webhdfs://host:port/path``
    angle: float  # Degrees in [0, 360), counter-clockwise
    x: int  # x and y: Left and top edge in the frame of the turned image, pixels
    y: int
    sha256: str | None = None  # Digest of the file's bytes; a file with another digest is refused
    low: float | None = None  # low and high: Values that become 0 and white
    high: float | None = None
    stain: str | None = None  # Numbers that describe the stains of the image

    @property
    def value_range(self) -> ValueRange | None:
        """The values that become 0 and white, or the numbers that describe the stains."""
        return range_from_columns(self.low, self.high, self.stain)

    @property
    def frame(self) -> tuple[str, str, float, tuple[float, ...]]:
        """What all tiles of one turned image have in common."""
        return self.uri, self.sha256 or "", self.angle, self.value_range or ()

    def __post_init__(self) -> None:
        if not 0 <= self.angle < 360:
            raise ValueError(f"angle is in [0, 360). Received: {self.angle!r}.")


def cut_tiles_of(contents: Sequence[memoryview], field: Field) -> NDArray[Any]:
    """Cut the tiles that the values of a column describe.

    `field`: shape and type that all tiles must have, and the `Recipe`.
    """
    # A task has one core, unless the environment says otherwise.
    cv2.setNumThreads(1)
    cutting = Recipe.from_text(field.recipe).cutting(field.shape[0], field.shape[2])
    places = [_place(content, field, row) for row, content in enumerate(contents)]
    tiles = aligned_empty((len(places), *field.shape), field.dtype)
    order = sorted(range(len(places)), key=lambda row: places[row].frame)
    for _, group in itertools.groupby(order, key=lambda row: places[row].frame):
        rows = list(group)
        first = places[rows[0]]
        image = _images.get(first, field, cutting)
        x = np.array([places[row].x for row in rows])
        y = np.array([places[row].y for row in rows])
        try:
            for row, tile in zip(
                rows, crop_tile(image, cutting.spec, first.angle, (x, y)), strict=True
            ):
                tiles[row] = tile
        except ImageError as error:
            raise ImageError(f"{first.uri}: {error}") from error
    return tiles


def open_content(uri: str) -> OpenFile:
    """Open a file that this process can access by itself."""
    scheme, colon, rest = uri.partition(":")
    if not colon or "/" in scheme or scheme == "file":
        return _open_local(Path("/" + rest.lstrip("/") if scheme == "file" else uri))
    if scheme == "hdfs" or scheme in WEB_SCHEMES:
        place = parse_path(uri)
        return open_web(_connection(place.scheme, place.authority), place.path)
    raise StorageError(
        "Workers read images from local and mounted paths and from HDFS. "
        f"Received: {uri}. Copy the images there, or write tiles with tile_images."
    )


class _Images:
    """The decoded images that were used last.

    `cache_bytes`: limit of the bytes that are kept; at least one image is kept, however large.
    """

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._images: OrderedDict[tuple[Any, ...], _Open] = OrderedDict()

    def get(self, place: TilePlace, field: Field, cutting: TilingConfig) -> Pixels | ChunkedImage:
        """Return an image with the channels and type of the field."""
        key = (
            *(place.uri, place.sha256, field.shape[2], cutting.choice, place.value_range),
            *(cutting.pixel_size, cutting.source_pixel_size, cutting.max_pixels),
        )
        if key not in self._images:
            self._images[key] = _open(place, field, cutting)
            while len(self._images) > 1 and self._bytes() > self._cache_bytes:
                self._images.popitem(last=False)[1].close()
        self._images.move_to_end(key)
        return self._images[key].pixels()

    def _bytes(self) -> int:
        return sum(image.nbytes for image in self._images.values())


class _Open:
    """An open image, and its file if the image is read part by part."""

    def __init__(self, uri: str, content: OpenFile, ready: PreparedImage) -> None:
        self._uri = uri
        self._content = content
        self._ready = ready
        if not isinstance(ready.pixels, ChunkedImage):
            content.stream.close()

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return (
            CACHE_BYTES
            if isinstance(self._ready.pixels, ChunkedImage)
            else self._ready.pixels.nbytes
        )

    def pixels(self) -> Pixels | ChunkedImage:
        """Return the pixels, after a check that the file has not changed."""
        if isinstance(self._ready.pixels, ChunkedImage) and self._content.is_changed:
            raise ImageError(_changed(self._uri))
        return self._ready.pixels

    def close(self) -> None:
        """Close the file."""
        self._ready.close()
        self._content.stream.close()


_images = _Images(CACHE_BYTES)


def _open(place: TilePlace, field: Field, cutting: TilingConfig) -> _Open:
    with ExitStack() as resources:
        content = resources.enter_context(open_content(place.uri))
        if place.sha256 is not None and content.sha256() != place.sha256:
            raise ImageError(_changed(place.uri))
        ready = prepare(
            content.stream, place.uri, place.uri, cutting, value_range=place.value_range
        )
        if ready.pixels.dtype.name != field.dtype:
            raise SchemaError(
                f"Column {field.name!r} has tiles of {field.dtype}. Received: "
                f"{ready.pixels.dtype.name} in {place.uri}. Convert the images to one type."
            )
        resources.pop_all()
        return _Open(place.uri, content, ready)


def _changed(uri: str) -> str:
    return f"{uri} has changed since its tiles were indexed. Run index_tiles again."


def _place(content: memoryview, field: Field, row: int) -> TilePlace:
    try:
        return msgspec.json.decode(content, type=TilePlace)
    except UNREADABLE as error:
        raise SchemaError(
            f"Column {field.name!r}: row {row} of the batch does not tell where a tile lies: "
            f"{error}. Received: {bytes(content[:200])!r}. Make the column with data_prep.cut."
        ) from error


def _open_local(path: Path) -> OpenFile:
    try:
        return open_local(path)
    except FileNotFoundError as error:
        raise PathNotFoundError(
            f"There is no image {path} on this host. All workers must see the images under the "
            "same path."
        ) from error
    except OSError as error:
        raise StorageError(f"The image {path} cannot be read on this host: {error}.") from error


@lru_cache(maxsize=4)
def _connection(scheme: str, authority: str) -> WebHdfsConnection:
    """Return the connection of this process to a file system."""
    # Spark has just read the images, so HDFS is there, even if it does not answer now.
    return WebHdfsConnection(find_address(parse_path(f"{scheme}://{authority}/")), patient=True)

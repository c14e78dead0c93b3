"""Images prepared for cutting: decoded, with the wanted channels and pixel size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

import cv2
import numpy as np

from data_prep.geometry.regions import Zones
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images.area_downsample import Shrunk
from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.intensity import ValueRange, normalise
from data_prep.images.open_image import MAX_PIXELS, REGION_BYTES, open_image
from data_prep.images.plane_selection import DecodedPlane, Pixels, as_channels
from distkeras_grid.errors import ImageError


@dataclass(frozen=True)
class PreparedImage:
    """An image ready to be cut."""

    picture: DecodedPlane  # The image as it came
    pixels: Pixels | ChunkedImage  # Resampled, if a pixel size is wanted
    zones: Zones  # Zones in pixels of `pixels`
    # Width and height of a pixel of the image as it came, in pixels of `pixels`
    scale: tuple[float, float]
    pixel_size: float | None  # Width of a pixel of `pixels`, micrometres

    def normalised(self, value_range: ValueRange) -> PreparedImage:
        """Return the image with its values normalised to the range of their type."""
        spread = partial(normalise, value_range=value_range)
        if isinstance(self.pixels, ChunkedImage):
            regions, channels = self.pixels.regions, self.pixels.shape[2]
            return replace(self, pixels=ChunkedImage(regions, channels, spread))
        return replace(self, pixels=spread(self.pixels))

    def close(self) -> None:
        """Close the source of the image, and delete what it stored on the disk."""
        for pixels in (self.pixels, self.picture.pixels):
            if isinstance(pixels, ChunkedImage):
                pixels.close()


def prepare(
    stream: BinaryIO,
    uri: str,
    path: str,
    cutting: TilingConfig,
    channels: int | None = None,
    value_range: ValueRange | None = None,
) -> PreparedImage:
    """Return an image ready to be cut.

    `stream`: must stay open for as long as `pixels` are read.
    """
    limits = {"max_pixels": cutting.max_pixels, "region_bytes": REGION_BYTES}
    picture = open_image(stream, uri, cutting.choice, **limits)
    pixels = picture.pixels
    height, width = pixels.shape[:2]
    stated = picture.pixel_size
    if cutting.source_pixel_size is not None:
        stated = (cutting.source_pixel_size, cutting.source_pixel_size)
    channels = channels or cutting.channels
    if channels is not None:
        pixels = converted(pixels, channels)
    if cutting.pixel_size is not None:
        if stated is None:
            raise ImageError(
                f"{uri} does not state the size of its pixels. Give --source-pixel-size."
            )
        factor_x, factor_y = (side / cutting.pixel_size for side in stated)
        pixels = resample(pixels, factor_x, factor_y, uri, cutting.max_pixels)
    scale = (pixels.shape[1] / width, pixels.shape[0] / height)
    zones = cutting.zones.of(path, width, height).scaled(*scale)
    pixel_size = None if stated is None else stated[0] / scale[0]
    ready = PreparedImage(picture, pixels, zones, scale, pixel_size)
    return ready if value_range is None else ready.normalised(value_range)


def converted(pixels: Pixels | ChunkedImage, channels: int) -> Pixels | ChunkedImage:
    """Return an image with 1 or 3 channels."""
    if not isinstance(pixels, ChunkedImage):
        return as_channels(pixels, channels)
    return pixels if channels == pixels.shape[2] else ChunkedImage(pixels.regions, channels)


def _decoded(raster: ChunkedImage, max_pixels: int, name: str) -> Pixels:
    """Return all pixels of a raster, because an image is enlarged as a whole."""
    height, width = raster.shape[:2]
    if height * width > max_pixels:
        raise ImageError(
            f"{name} has {width}x{height} pixels, too many to be enlarged. Give a larger "
            "--pixel-size, or allow more by --max-pixels."
        )
    pixels: Pixels = np.empty(raster.shape, raster.dtype)
    top = 0
    for band in raster.bands():
        pixels[top : top + len(band)] = band
        top += len(band)
    return pixels


def resample(
    pixels: Pixels | ChunkedImage,
    factor_x: float,
    factor_y: float,
    name: str,
    max_pixels: int = MAX_PIXELS,
) -> Pixels | ChunkedImage:
    """Return an image whose sides are multiplied by factors, to at least one pixel.

    Where an image shrinks, areas are averaged; one that is read part by part stays so. Where it
    grows, cubic interpolation is used, limited to the range of the original values.
    """
    height, width, channels = pixels.shape
    # A file can state any number; the product may be infinite.
    across, down = max(1.0, width * factor_x), max(1.0, height * factor_y)
    shrinks = across <= width and down <= height
    if not shrinks and not across * down <= MAX_PIXELS:
        raise ImageError(
            f"{name} would have {across:,.0f}x{down:,.0f} pixels of the wanted size. Give a larger "
            "--pixel-size."
        )
    size = round(across), round(down)
    if size == (width, height):
        return pixels
    if isinstance(pixels, ChunkedImage) and shrinks:
        return ChunkedImage(Shrunk(pixels, *size))
    if isinstance(pixels, ChunkedImage):
        pixels = _decoded(pixels, max_pixels, name)
    grows = size[0] * size[1] > width * height
    how = cv2.INTER_CUBIC if grows else cv2.INTER_AREA
    resized: Pixels = cv2.resize(pixels, size, None, 0, 0, how).reshape(size[1], size[0], channels)
    if grows:
        np.clip(resized, pixels.min(), pixels.max(), out=resized)
    return resized

"""Images that are decoded part by part are what they are as a whole."""

from __future__ import annotations

import errno
import os
import tracemalloc
from io import BytesIO

import cv2
import numpy as np
import pytest
import tifffile

from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tiler import iter_tiles
from data_prep.images import chunked_image as module
from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.open_image import is_gray, open_image
from data_prep.images.plane_selection import as_channels
from distkeras_grid.errors import ImageError
from tests.data_prep.array_regions import ArrayRegions, Noise

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    """Close all rasters at the end of a test, and their files."""
    made = []
    initialise = ChunkedImage.__init__

    def watched(self, *parts, **more):
        initialise(self, *parts, **more)
        made.append(self)

    monkeypatch.setattr(ChunkedImage, "__init__", watched)
    yield made
    for each in made:
        each.close()


def smooth(height, width, channels=3, dtype=np.uint8):
    noise = cv2.GaussianBlur(RNG.normal(size=(height, width, channels)), (0, 0), 2.0)
    noise = noise.reshape(height, width, channels)
    return ((noise - noise.min()) / np.ptp(noise) * np.iinfo(dtype).max).astype(dtype)


GRAINS = {"tiles": (256, 256), "odd": (240, 100), "strips": (16, 10_000), "large": (1000, 1000)}


@pytest.mark.parametrize("grain", GRAINS.values(), ids=GRAINS)
@pytest.mark.parametrize("cache_bytes", [1, 1 << 20, 1 << 30])
def test_any_rectangle_is_that_of_the_array(grain, cache_bytes):
    pixels = RNG.integers(0, 256, (700, 900, 3), dtype=np.uint8)
    raster = ChunkedImage(ArrayRegions(pixels, grain), cache_bytes=cache_bytes)
    for _ in range(10):
        (left, right), (top, bottom) = (np.sort(RNG.integers(0, side, 2)) for side in (901, 701))
        found = raster.read(int(left), int(top), int(right), int(bottom))
        np.testing.assert_array_equal(found, pixels[top:bottom, left:right])
    np.testing.assert_array_equal(np.concatenate(list(raster.bands())), pixels)
    assert raster.max() == pixels.max()
    raster.close()


@pytest.mark.parametrize("grain", [(256, 256), (16, 900)])
def test_each_part_is_decoded_once_though_memory_holds_few(grain):
    pixels = RNG.integers(0, 256, (1024, 900, 1), dtype=np.uint8)
    regions = ArrayRegions(pixels, grain)
    raster = ChunkedImage(regions, cache_bytes=3 * 256 * 256)
    for _ in range(3):
        for top in range(0, 1024, 128):
            raster.read(0, top, 900, top + 128)
    assert set(regions.decoded.values()) == {1}


def test_without_room_on_the_disk_parts_are_decoded_again(monkeypatch):
    pixels = RNG.integers(0, 256, (1024, 900, 1), dtype=np.uint8)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    regions = ArrayRegions(pixels, (256, 256))
    raster = ChunkedImage(regions, cache_bytes=1)
    for _ in range(2):
        np.testing.assert_array_equal(raster.read(0, 0, 900, 1024), pixels)
    assert max(regions.decoded.values()) == 2


def test_an_error_of_the_disk_that_is_no_lack_of_room_is_one(monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "pwrite", broken)
    raster = ChunkedImage(ArrayRegions(smooth(600, 600), (256, 256)), cache_bytes=1)
    with pytest.raises(OSError, match="broken"):
        raster.read(0, 0, 600, 600)


@pytest.mark.full
def test_a_turned_band_reads_only_the_blocks_around_it():
    pixels = smooth(3000, 3000, 1)
    regions = ArrayRegions(pixels, (256, 256))
    raster = ChunkedImage(regions)
    tiles = iter_tiles(raster, TileSpec(256, angles=[45]))
    next(tiles)
    # Of 144 blocks the first tile's rows touch a corner.
    assert len(regions.decoded) < 15


def test_gray_of_a_part_is_that_of_the_whole():
    for dtype in (np.uint8, np.uint16):
        pixels = RNG.integers(0, np.iinfo(dtype).max, (301, 407, 3), dtype=dtype)
        whole = as_channels(pixels, 1)
        for left, top, right, bottom in ((0, 0, 1, 1), (3, 5, 200, 7), (11, 0, 404, 301)):
            part = as_channels(pixels[top:bottom, left:right], 1)
            np.testing.assert_array_equal(part, whole[top:bottom, left:right])


def test_memory_does_not_grow_with_the_image(monkeypatch):
    monkeypatch.setattr(module, "BAND_BYTES", 1 << 20)
    peaks = []
    for height in (1000, 3000):
        raster = ChunkedImage(Noise((height, 1000, 3)), cache_bytes=2 << 20)
        tracemalloc.start()
        try:
            for _ in iter_tiles(raster, TileSpec(128, -0.5, angles=[0, 8, 98])):
                pass
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
            raster.close()
    assert peaks[0] < 20 << 20
    # Rows of the turned image get longer, and no more of them are held.
    assert peaks[1] < 3 * peaks[0]


def test_images_are_opened_part_by_part_above_a_size():
    pixels = smooth(600, 800)
    stream = BytesIO()
    tifffile.imwrite(stream, pixels, tile=(128, 128), compression="zlib", photometric="rgb")
    assert isinstance(open_image(stream, "x", region_bytes=pixels.nbytes).pixels, np.ndarray)
    assert isinstance(open_image(stream, "x", region_bytes=None).pixels, np.ndarray)
    found = open_image(stream, "x", max_pixels=100, region_bytes=pixels.nbytes - 1).pixels
    assert isinstance(found, ChunkedImage)
    np.testing.assert_array_equal(found.read(0, 0, 800, 600), pixels)
    with pytest.raises(ImageError):
        open_image(stream, "x", max_pixels=100, region_bytes=None)


def test_gray_is_found_in_any_row():
    pixels = np.full((5000, 1000, 3), 7, np.uint8)
    assert is_gray(pixels)
    pixels[4999, 999, 2] = 8
    assert not is_gray(pixels)

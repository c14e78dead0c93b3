"""Rectangles of TIFF pages, in all ways in which pages are stored, beside the whole pages."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import tifffile

from data_prep.images import tiff_planes
from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.open_image import open_image
from data_prep.images.plane_selection import PlaneSelector
from distkeras_grid.errors import ImageError
from tests.data_prep.image_checks import tiff

RNG = np.random.default_rng(5)
HEIGHT, WIDTH = 333, 470
GRAY = RNG.integers(0, 256, (HEIGHT, WIDTH), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
DEEP = RNG.integers(0, 4096, (HEIGHT, WIDTH), dtype=np.uint16)
DEEP_COLOUR = RNG.integers(0, 65536, (HEIGHT, WIDTH, 3), dtype=np.uint16)
STACK = RNG.integers(0, 65536, (4, 3, HEIGHT, WIDTH), dtype=np.uint16)  # z, channel, y, x
SLOPE = np.add.outer(np.arange(HEIGHT), np.arange(WIDTH)) // 4
SMOOTH = np.stack([SLOPE, SLOPE + 20, SLOPE + 40], axis=2).astype(np.uint8)
OPAQUE = np.dstack([COLOUR, np.full((HEIGHT, WIDTH), 255, np.uint8)])
PALETTE = RNG.integers(0, 65536, (3, 256), dtype=np.uint16)
PLANES = np.ascontiguousarray(np.moveaxis(COLOUR, 2, 0))
DEEP_PLANES = np.ascontiguousarray(np.moveaxis(DEEP_COLOUR, 2, 0))
BITS = GRAY > 99

RGB = {"photometric": "rgb"}
SEPARATE = RGB | {"planarconfig": "separate"}
TILED = {"tile": (64, 96)}
LOOKED_UP = np.moveaxis(PALETTE[:, GRAY] >> 8, 0, 2)
# What is written, how, and what is read; None: with loss.
KINDS = {
    "one strip": (COLOUR, RGB | {"rowsperstrip": HEIGHT}, COLOUR),
    "strips": (COLOUR, RGB | {"rowsperstrip": 7}, COLOUR),
    "big endian": (DEEP_COLOUR, RGB | {"rowsperstrip": 7, "byteorder": ">"}, DEEP_COLOUR),
    "packed strips": (DEEP_COLOUR, RGB | {"rowsperstrip": 7, "compression": "lzw"}, DEEP_COLOUR),
    "predicted": (DEEP, {"rowsperstrip": 16, "compression": "zlib", "predictor": True}, DEEP),
    "tiles": (COLOUR, RGB | TILED, COLOUR),
    "packed tiles": (DEEP_COLOUR, RGB | TILED | {"compression": "zstd"}, DEEP_COLOUR),
    "bigtiff": (GRAY, TILED | {"bigtiff": True, "compression": "zlib"}, GRAY),
    "jpeg": (SMOOTH, RGB | TILED | {"compression": "jpeg"}, None),
    "jpeg 2000": (SMOOTH, RGB | TILED | {"compression": "jpeg2000"}, None),
    "planar": (PLANES, SEPARATE, COLOUR),
    "planar bigtiff": (
        DEEP_PLANES,
        SEPARATE | {"bigtiff": True, "compression": "lzw"},
        DEEP_COLOUR,
    ),
    "planar tiles": (DEEP_PLANES, SEPARATE | TILED | {"compression": "zlib"}, DEEP_COLOUR),
    "opaque": (OPAQUE, RGB | TILED | {"extrasamples": ["unassalpha"]}, COLOUR),
    "white is 0": (GRAY, TILED | {"photometric": "miniswhite"}, 255 - GRAY),
    "deep white is 0": (DEEP, {"photometric": "miniswhite", "byteorder": ">"}, 65535 - DEEP),
    "palette": (
        *(GRAY, {"photometric": "palette", "colormap": PALETTE, "rowsperstrip": 9}, LOOKED_UP),
    ),
    "signed": (DEEP.astype(np.int16), TILED, DEEP),
    "bits": (BITS, {"photometric": "minisblack", "rowsperstrip": 5}, BITS * np.uint8(255)),
    "inverted bits": (BITS, {"photometric": "miniswhite"}, ~BITS * np.uint8(255)),
    "packed 12 bits": (DEEP, {"bitspersample": 12}, DEEP),
}
CHOICES = {
    "z max": PlaneSelector(channel="1", z="max"),
    "z mean": PlaneSelector(channel="2,1,0", z="mean"),
    "page": PlaneSelector(channel="0", z="2"),
}


def opened(content, choice=None):
    stream = BytesIO(content)
    whole = open_image(stream, "x", choice, region_bytes=None)
    by_part = open_image(stream, "x", choice, region_bytes=0)
    assert isinstance(by_part.pixels, ChunkedImage)
    assert (by_part.bits, by_part.pixel_size, by_part.notes) == (
        *(whole.bits, whole.pixel_size, whole.notes),
    )
    return whole.pixels, by_part.pixels


def check(whole, raster):
    assert raster.dtype == whole.dtype
    for left, top, right, bottom in (
        *((0, 0, WIDTH, HEIGHT), (0, 0, 1, 1), (95, 63, 97, 66), (300, 7, 301, 330)),
        (WIDTH - 1, HEIGHT - 1, WIDTH, HEIGHT),
    ):
        direct = raster.regions.read(left, top, right, bottom)
        np.testing.assert_array_equal(direct, whole[top:bottom, left:right])
        cached = raster.read(left, top, right, bottom)
        np.testing.assert_array_equal(cached, whole[top:bottom, left:right])


@pytest.mark.parametrize(("pixels", "options", "expected"), KINDS.values(), ids=KINDS)
def test_rectangles_are_those_of_the_whole_page(pixels, options, expected):
    whole, raster = opened(tiff(pixels, **options))
    if expected is None:
        assert np.abs(whole.astype(int) - pixels).mean() < 4
    else:
        np.testing.assert_array_equal(whole, expected.reshape(whole.shape))
    check(whole, raster)


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("kind", ["ome", "imagej"])
def test_rectangles_of_stacks(kind, choice):
    options = {"imagej": True} if kind == "imagej" else {"ome": True, "compression": "zlib"}
    check(*opened(tiff(STACK, metadata={"axes": "ZCYX"}, **options), choice))


def test_a_plane_that_is_turned_or_in_one_large_piece_can_only_be_read_whole(monkeypatch):
    turned = tiff(COLOUR, extratags=[(274, 3, 1, 6, True)], **RGB)
    assert isinstance(open_image(BytesIO(turned), "x", region_bytes=0).pixels, np.ndarray)
    content = tiff(COLOUR, rowsperstrip=HEIGHT, compression="zlib", **RGB)
    assert isinstance(open_image(BytesIO(content), "x", region_bytes=0).pixels, ChunkedImage)
    monkeypatch.setattr(tiff_planes, "MOST_PART_BYTES", COLOUR.nbytes - 1)
    assert isinstance(open_image(BytesIO(content), "x", region_bytes=0).pixels, np.ndarray)


def test_a_transparent_pixel_is_found_where_it_is_read():
    pixels = OPAQUE.copy()
    pixels[300, 400, 3] = 9
    content = tiff(pixels, extrasamples=["unassalpha"], **RGB, **TILED)
    raster = open_image(BytesIO(content), "x", region_bytes=0).pixels
    raster.read(0, 0, 10, 10)
    with pytest.raises(ImageError, match="transparent"):
        raster.read(390, 290, WIDTH, HEIGHT)


def test_damage_in_a_piece_is_an_error_with_the_name_of_the_file():
    content = bytearray(tiff(COLOUR, compression="zlib", **RGB, **TILED))
    with tifffile.TiffFile(BytesIO(content)) as file:
        at = file.pages[0].dataoffsets[-1]
    content[at : at + 40] = bytes(40)
    raster = open_image(BytesIO(bytes(content)), "x.tif", region_bytes=0).pixels
    with pytest.raises(ImageError, match=r"x\.tif"):
        raster.read(0, 0, WIDTH, HEIGHT)
    # What is cut short is not even opened.
    with pytest.raises(ImageError, match=r"x\.tif is cut short"):
        open_image(BytesIO(content[:-3000]), "x.tif", region_bytes=0)

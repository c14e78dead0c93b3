from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import cv2
import numpy as np
import pytest
import tifffile

from data_prep.geometry.grid import TileSpec
from data_prep.geometry.regions import Zone, ZoneRules
from data_prep.geometry.tiler import iter_tiles
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images import preprocess
from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.plane_selection import PlaneSelector
from data_prep.images.preprocess import prepare, resample
from distkeras_grid.errors import ImageError

CUTTING = TilingConfig(TileSpec(16, angles=[0, 30]), "raw", 90, None, PlaneSelector())
GRAY = cv2.GaussianBlur(
    np.random.default_rng(0).integers(0, 4096, (60, 90), dtype=np.uint16), (0, 0), 2
)


def tiff(width_um=None, height_um=None):
    stream = BytesIO()
    sizes = {"PhysicalSizeX": width_um, "PhysicalSizeY": height_um} if width_um else {}
    tifffile.imwrite(stream, GRAY, ome=True, metadata={"axes": "YX", **sizes})
    return stream


@pytest.mark.parametrize(
    ("stated", "given", "wanted", "shape"),
    [
        ((0.25, 0.25), None, 0.5, (30, 45)),
        ((0.25, 0.25), None, 0.1, (150, 225)),
        ((0.25, 0.5), None, 0.5, (60, 45)),
        ((0.25, 0.25), 1.0, 0.5, (120, 180)),
        ((), 1.0, 2.0, (30, 45)),
        ((0.25, 0.25), None, None, (60, 90)),
    ],
)
def test_images_come_to_one_pixel_size(stated, given, wanted, shape):
    cutting = replace(CUTTING, pixel_size=wanted, source_pixel_size=given)
    ready = prepare(tiff(*stated), "x", "x", cutting, None)
    assert ready.pixels.shape == (*shape, 1)
    assert ready.scale == (shape[1] / 90, shape[0] / 60)
    assert ready.pixel_size == pytest.approx(wanted or stated[0])
    assert ready.picture.pixels.shape == (60, 90, 1)


@pytest.mark.parametrize("wanted", [0.5, 0.57, 0.25, 0.1])
def test_an_image_that_is_read_part_by_part_is_resampled_as_a_whole_one(monkeypatch, wanted):
    cutting = replace(CUTTING, pixel_size=wanted, zones=ZoneRules({}, bottom_strip=9))
    whole = prepare(tiff(0.25, 0.25), "x", "x", cutting)
    monkeypatch.setattr(preprocess, "REGION_BYTES", 0)
    ready = prepare(tiff(0.25, 0.25), "x", "x", cutting)
    assert isinstance(ready.picture.pixels, ChunkedImage)
    assert isinstance(ready.pixels, ChunkedImage) is (wanted >= 0.25)
    assert ready.pixels.shape == whole.pixels.shape
    assert (ready.scale, ready.pixel_size) == (whole.scale, whole.pixel_size)
    height, width = whole.pixels.shape[:2]
    found = ready.pixels if wanted < 0.25 else ready.pixels.read(0, 0, width, height)
    assert np.abs(found.astype(int) - whole.pixels).max() <= (wanted > 0.25)
    tiles = [
        list(iter_tiles(pixels, CUTTING.spec, zones=each.zones))
        for pixels, each in ((ready.pixels, ready), (found, whole))
    ]
    for tile, expected in zip(*tiles, strict=True):
        np.testing.assert_array_equal(tile.pixels, expected.pixels)
    ready.close()


def test_only_an_image_that_grows_must_be_held_as_a_whole(monkeypatch):
    monkeypatch.setattr(preprocess, "REGION_BYTES", 0)
    few = replace(CUTTING, max_pixels=100)
    monkeypatch.setattr(preprocess, "MAX_PIXELS", 100)
    for wanted in (0.5, 0.25):
        ready = prepare(tiff(0.25, 0.25), "x", "x", replace(few, pixel_size=wanted))
        assert isinstance(ready.pixels, ChunkedImage)
        ready.close()
    with pytest.raises(ImageError, match="x"):
        prepare(tiff(0.25, 0.25), "x", "x", replace(few, pixel_size=0.2))
    monkeypatch.setattr(preprocess, "MAX_PIXELS", 1 << 30)
    with pytest.raises(ImageError, match="x"):
        prepare(tiff(0.25, 0.25), "x", "x", replace(few, pixel_size=0.2))


def test_without_a_pixel_size_there_is_no_resampling():
    assert prepare(tiff(), "x", "x", CUTTING, None).pixel_size is None
    with pytest.raises(ImageError, match="x"):
        prepare(tiff(), "x", "x", replace(CUTTING, pixel_size=0.5), None)


def test_the_same_thing_at_two_magnifications_looks_the_same():
    fine = cv2.GaussianBlur(
        np.random.default_rng(1).integers(0, 256, (400, 600), dtype=np.uint8), (0, 0), 8
    )[:, :, np.newaxis]
    coarse = resample(fine, 0.25, 0.25, "x")
    again = resample(coarse, 4, 4, "x")
    assert again.shape == fine.shape
    assert np.abs(again.astype(int) - fine).max() <= 3
    assert fine.min() <= again.min()
    assert again.max() <= fine.max()


def test_colour_stays_colour_and_too_large_is_refused():
    colour = np.zeros((40, 40, 3), np.uint8)
    assert resample(colour, 0.5, 2, "x").shape == (80, 20, 3)
    with pytest.raises(ImageError, match="x would have"):
        resample(colour, 1000, 1000, "x")
    for factor in (1e300, 1e308, float("inf")):
        with pytest.raises(ImageError):
            resample(colour, factor, factor, "x")
        with pytest.raises(ImageError):
            resample(colour, factor, 1e-300, "x")


@pytest.mark.parametrize(
    ("wanted", "sides"), [(0.25, (1.0, 1.0)), (0.5, (0.3, 2.0)), (2.0, (1.0, 1.0))]
)
def test_no_pixel_of_a_zone_bleeds_into_a_tile_of_a_resampled_image(wanted, sides):
    pixels = np.zeros((80, 100), np.uint8)
    pixels[50:] = 255
    pixels[:20, 30:] = 255
    stream = BytesIO()
    metadata = {"axes": "YX", "PhysicalSizeX": sides[0], "PhysicalSizeY": sides[1]}
    tifffile.imwrite(stream, pixels, ome=True, metadata=metadata)
    corner = Zone("exclude", (((30.0, 0.0), (100.0, 0.0), (100.0, 20.0), (30.0, 20.0)),))
    rules = ZoneRules({"x": (corner,)}, bottom_strip=30)
    spec = TileSpec(8, angles=[0, 30, 45, 90])
    cutting = replace(CUTTING, spec=spec, pixel_size=wanted, zones=rules)
    ready = prepare(stream, "x", "x", cutting)
    tiles = list(iter_tiles(ready.pixels, spec, zones=ready.zones))
    assert len(tiles) > 10
    assert max(tile.pixels.max() for tile in tiles) == 0

from __future__ import annotations

import itertools

import cv2
import numpy as np
import pytest

from data_prep.geometry.grid import RotatedFrame, TileSpec
from data_prep.geometry.regions import Zones
from data_prep.geometry.tile_layout import allowed_positions, lay_out
from data_prep.geometry.tiler import iter_tiles

TRIANGLE = np.array([[150.0, 90.0], [260.0, 130.0], [170.0, 240.0]])


@pytest.mark.parametrize(("edge", "empty"), [("drop", 36), ("shift", 0), ("pad", 0)])
def test_small_images_have_angles_without_a_tile(edge, empty):
    assert lay_out(500, 500, TileSpec(edge=edge)).empty_angles == empty


@pytest.mark.parametrize("edge", ["drop", "shift", "pad"])
@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.full
def test_no_tile_shows_a_pixel_of_a_zone(edge, tile):
    """Zones are white on black: a tile that shows any of one has a pixel above 0."""
    image = np.zeros((300, 400), np.uint8)
    cv2.fillPoly(image, [np.round(TRIANGLE).astype(np.int32)], 255)
    image[280:] = 255
    strip = np.array([[0.0, 280], [400, 280], [400, 300], [0, 300]])
    # cv2 fills to the pixels' centres and their borders: half a pixel more on each side.
    grown = TRIANGLE + 0.5 + 2 * (TRIANGLE - TRIANGLE.mean(0)) / 50
    zones = Zones(excluded=((strip,), (grown,)))
    spec = TileSpec(tile, 0.25, range(0, 360, 15), edge=edge)
    tiles = list(iter_tiles(image, spec, zones=zones))
    found = lay_out(400, 300, spec, zones)
    everything = lay_out(400, 300, spec)
    assert len(tiles) == found.tiles == everything.tiles - found.excluded
    assert 0 < found.excluded < everything.tiles
    assert max(tile.pixels.max() for tile in tiles) == 0
    # And none more than that goes: some tile lies close to the strip.
    bottoms = [max(y for _, y in tile.corners()) for tile in tiles]
    assert max(bottoms) > 270


@pytest.mark.parametrize(("top", "tiles"), [(310, 12), (309.5, 8), (300, 8)])
def test_a_border_is_no_touch(top, tiles):
    # The centred grid of three rows begins at y = 10 and ends at 310.
    strip = np.array([[0.0, top], [400, top], [400, 320], [0, 320]])
    spec = TileSpec(100, 0.0, [0])
    (x, _), excluded = allowed_positions(RotatedFrame(400, 320, 0.0), spec, Zones(((strip,),)))
    assert (x.size, excluded) == (tiles, 12 - tiles)


def test_regions_to_stay_in_have_holes():
    region = np.array([[20.0, 20], [380, 20], [380, 280], [20, 280]])
    hole = np.array([[190.0, 140], [210, 140], [210, 160], [190, 160]])
    spec = TileSpec(32, 0.0, range(0, 360, 30))
    for angle in spec.angles:
        frame = RotatedFrame(400, 300, angle)
        (x, y), excluded = allowed_positions(frame, spec, Zones(included=((region, hole),)))
        assert x.size
        assert excluded
        base_x, base_y = frame.to_base((x, y), 32)
        for right, down in itertools.product(np.linspace(0, 32, 9), repeat=2):
            at_x, at_y = frame.base_to_source(base_x + right, base_y + down)
            assert np.all((at_x >= 20) & (at_x <= 380) & (at_y >= 20) & (at_y <= 280))
            assert not np.any((at_x > 190) & (at_x < 210) & (at_y > 140) & (at_y < 160))


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_padded_tiles_are_black_outside_and_say_so(cache_bytes):
    image = np.full((150, 211, 3), 200, np.uint8)
    spec = TileSpec(64, 0.25, range(0, 360, 30), edge="pad", interpolation="cubic")
    seen = np.zeros((150, 211))
    for tile in iter_tiles(image, spec, cache_bytes=cache_bytes):
        black = (tile.pixels == 0).all(axis=2)
        assert np.all(black | (tile.pixels == 200).all(axis=2))
        assert black.mean() == pytest.approx(tile.outside, abs=0.02)
        assert tile.outside < 1
        if tile.angle == 0:
            seen[max(0, tile.y) : tile.y + 64, max(0, tile.x) : tile.x + 64] = 1
    assert seen.all()


def test_the_original_comes_once_more():
    image = np.random.default_rng(0).integers(0, 256, (90, 120), dtype=np.uint8)
    spec = TileSpec(32, angles=[0, 40, 90], mode="inscribed", include_original=True)
    tiles = list(iter_tiles(image, spec))
    assert len(tiles) == lay_out(120, 90, spec).tiles
    again = [tile for tile in tiles if tile.original]
    straight = [tile for tile in tiles if tile.angle == 0 and not tile.original]
    assert len(again) == len(straight) > 0
    for one, other in zip(again, straight, strict=True):
        assert (one.x, one.y) == (other.x, other.y)
        np.testing.assert_array_equal(one.pixels, other.pixels)
    assert not any(tile.original for tile in iter_tiles(image, spec, [40, 90]))

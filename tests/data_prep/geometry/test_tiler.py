from dataclasses import astuple

import cv2
import numpy as np
import pytest
from PIL import Image

from data_prep.geometry.grid import RotatedFrame, TileSpec
from data_prep.geometry.tile_layout import count_tiles
from data_prep.geometry.tiler import crop_tile, iter_tiles
from distkeras_grid.errors import ConfigurationError, ImageError

OBLIQUE = (5.0, 30.0, 45.0, 77.5)


def smooth_image(height, width, channels=None, dtype=np.uint8):
    """A texture with detail down to about 6 pixels, which all interpolations reproduce."""
    rng = np.random.default_rng(7)
    shape = (height, width) if channels is None else (height, width, channels)
    noise = cv2.GaussianBlur(rng.normal(size=shape), (0, 0), 3.0).reshape(shape)
    scaled = (noise - noise.min()) / (noise.max() - noise.min())
    return (scaled * (np.iinfo(dtype).max if dtype != np.float32 else 1)).astype(dtype)


def whole_canvas(image, angle, interpolation=cv2.INTER_CUBIC):
    """The turned image in one piece, by a matrix built another way than in the code under test."""
    frame = RotatedFrame(image.shape[1], image.shape[0], angle)
    width, height = frame.base_size
    matrix = cv2.getRotationMatrix2D(
        ((image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2), frame.base, 1.0
    )
    matrix[:, 2] += ((width - image.shape[1]) / 2, (height - image.shape[0]) / 2)
    base = cv2.warpAffine(
        image, matrix, (width, height), flags=interpolation, borderMode=cv2.BORDER_REFLECT_101
    )
    return np.rot90(base, frame.turns)


def difference(tile, expected):
    return np.abs(tile.pixels.astype(np.int64) - expected.astype(np.int64))


@pytest.mark.parametrize("edge", ["drop", "shift", "pad"])
@pytest.mark.parametrize("shape", [(300, 401), (300, 400, 3), (301, 401, 1)])
@pytest.mark.parametrize("angle", [0, 90, 180, 270])
def test_quarter_turns_are_bit_exact(shape, angle, edge):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    spec = TileSpec(64, 0.25, [angle], edge=edge)
    # A tile with "pad" begins up to its side outside, where it is black.
    canvas = np.pad(np.rot90(image, angle // 90), ((64, 64), (64, 64), (0, 0))[: image.ndim])
    found = list(iter_tiles(image, spec))
    assert len(found) == count_tiles(shape[1], shape[0], spec)
    for tile in found:
        expected = canvas[tile.y + 64 : tile.y + 128, tile.x + 64 : tile.x + 128]
        np.testing.assert_array_equal(tile.pixels, expected)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
@pytest.mark.parametrize("mode", ["inside", "inscribed"])
def test_bands_equal_the_whole_canvas(cache_bytes, mode):
    image = smooth_image(437, 610, 3)
    angles = [base + 90 * turns for base in OBLIQUE for turns in range(4)]
    spec = TileSpec(128, angles=angles, mode=mode)
    found = list(iter_tiles(image, spec, cache_bytes=cache_bytes))
    assert len(found) == count_tiles(610, 437, spec) > 100
    canvases = {angle: whole_canvas(image, angle) for angle in angles}
    for tile in found:
        canvas = canvases[tile.angle]
        expected = canvas[tile.y : tile.y + 128, tile.x : tile.x + 128]
        apart = difference(tile, expected)
        # OpenCV rounds a coordinate to 1/32 pixel; where it lies between two, bands and canvas
        # may take different sides.
        assert apart.max() <= 1
        assert np.mean(apart > 0) < 0.01


# Pillow's frames have whole pixels on both sides of the centre: at these angles ours have, too.
@pytest.mark.parametrize("angle", [12, 25, 133, 215])
def test_agrees_with_pillow(angle):
    image = smooth_image(420, 560)
    tiles = list(iter_tiles(image, TileSpec(128, angles=[angle])))
    assert len(tiles) >= 8
    width, height = RotatedFrame(560, 420, angle).size
    turned = Image.fromarray(image).rotate(angle, Image.Resampling.BICUBIC, expand=True)
    canvas = np.asarray(turned)
    right, down = canvas.shape[1] - width, canvas.shape[0] - height
    assert right % 2 == down % 2 == 0
    for tile in tiles:
        top, left = tile.y + down // 2, tile.x + right // 2
        apart = difference(tile, canvas[top : top + 128, left : left + 128])
        assert apart.mean() < 0.6
        # Less the rim: at the border of the source each continues the image in its own way.
        assert apart[3:-3, 3:-3].max() <= 4


def test_centres_point_to_the_place_in_the_source():
    y, x = np.mgrid[:300, :420] + 0.5
    coordinates = np.stack([x, y], axis=2).astype(np.float32)
    for tile in iter_tiles(coordinates, TileSpec(64, angles=range(0, 360, 35))):
        np.testing.assert_allclose(tile.pixels.mean((0, 1)), (tile.src_cx, tile.src_cy), atol=0.05)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("channels", [None, 1, 3, 4])
def test_keeps_dtype_and_axes(dtype, channels):
    image = smooth_image(200, 220, channels, dtype)
    for tile in iter_tiles(image, TileSpec(64, angles=[0, 33, 90, 123])):
        assert tile.pixels.dtype == dtype
        assert tile.pixels.shape == (64, 64, *image.shape[2:])
        assert tile.pixels.flags.c_contiguous
        assert tile.pixels.base is None


def test_order_is_by_base_angle_then_angle_then_rows():
    spec = TileSpec(64, angles=[0, 5, 90, 95, 185])
    found = [(t.angle % 90, t.angle, t.y, t.x) for t in iter_tiles(smooth_image(300, 300), spec)]
    assert found == sorted(found)


def test_some_angles_are_those_of_all():
    image = smooth_image(300, 300)
    spec = TileSpec(64, angles=range(0, 360, 15))
    every = {(t.angle, t.x, t.y): t.pixels for t in iter_tiles(image, spec)}
    some = list(iter_tiles(image, spec, angles=[15, 105]))
    assert {tile.angle for tile in some} == {15, 105}
    for tile in some:
        np.testing.assert_array_equal(tile.pixels, every[tile.angle, tile.x, tile.y])
    with pytest.raises(ConfigurationError, match="7"):
        list(iter_tiles(image, spec, angles=[7]))


def test_image_wider_than_opencv_takes():
    image = np.tile(smooth_image(100, 400), (1, 100))
    tiles = list(iter_tiles(image, TileSpec(64, 0.0, [0.1], interpolation="linear")))
    assert max(tile.src_cx for tile in tiles) > 32_767
    for tile in tiles[:: max(1, len(tiles) // 20)]:
        left, top = int(tile.src_cx) - 32, int(tile.src_cy) - 32
        assert np.abs(tile.pixels.mean() - image[top : top + 64, left : left + 64].mean()) < 2


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (np.zeros(10, np.uint8), "shape"),
        (np.zeros((10, 10, 5), np.uint8), "4 channels"),
        (np.zeros((0, 10), np.uint8), "shape"),
        (np.zeros((10, 10), np.int64), "int64"),
    ],
)
def test_refuses_what_is_no_image(image, says):
    with pytest.raises(ImageError, match=says):
        list(iter_tiles(image, TileSpec(4)))


def test_corners_enclose_the_pixels_that_the_tile_shows():
    """Each tile of a quarter turn is found in the image inside its corners, turned."""
    image = np.random.default_rng(0).integers(0, 256, (40, 60), np.uint8)
    spec = TileSpec(tile=16, overlap=0.5, angles=(0, 90, 180, 270))
    for tile in iter_tiles(image, spec):
        xs, ys = zip(*tile.corners(), strict=True)
        left, right = round(min(xs)), round(max(xs))
        top, bottom = round(min(ys)), round(max(ys))
        piece = image[top:bottom, left:right]
        assert np.array_equal(np.rot90(piece, round(tile.angle / 90)), tile.pixels)
        # The first corner is the tile's own top left one.
        x, y = tile.corners()[0]
        first = image[round(y) - (round(y) == bottom), round(x) - (round(x) == right)]
        assert first == tile.pixels[0, 0]


@pytest.mark.parametrize("interpolation", ["nearest", "linear", "cubic", "lanczos4"])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_no_pixel_is_brighter_than_the_image(interpolation, cache_bytes):
    image = np.random.default_rng(0).integers(0, 4096, (150, 190), dtype=np.uint16)
    spec = TileSpec(64, angles=[0, 30, 120], interpolation=interpolation)
    tiles = list(iter_tiles(image, spec, cache_bytes=cache_bytes))
    assert max(int(tile.pixels.max()) for tile in tiles) <= image.max()
    for tile in tiles:
        at = np.array([tile.x]), np.array([tile.y])
        (alone,) = crop_tile(image, spec, tile.angle, at)
        assert int(alone.max()) <= 4095


@pytest.mark.parametrize("angles", [[0, 90], [20, 110, 200], [35]])
def test_strips_change_the_order_of_tiles_and_nothing_else(angles, monkeypatch):
    image = np.random.default_rng(0).integers(0, 256, (150, 200, 3), dtype=np.uint8)
    spec = TileSpec(32, angles=angles, include_original=0 in angles)
    whole = list(iter_tiles(image, spec, white=255))
    monkeypatch.setattr("data_prep.geometry.tiler.STRIP_BYTES", 3 * 32 * 32 * 3)
    strips = list(iter_tiles(image, spec, white=255))

    def place(tile):
        return tile.original, tile.angle, tile.x, tile.y

    assert [place(tile) for tile in strips] != [place(tile) for tile in whole]
    expected = {place(tile): tile for tile in whole}
    assert sorted(map(place, strips)) == sorted(expected)
    for tile in strips:
        other = expected[place(tile)]
        assert (tile.src_cx, tile.src_cy) == (other.src_cx, other.src_cy)
        np.testing.assert_array_equal(tile.pixels, other.pixels)
        measured = [astuple(each.quality) for each in (tile, other)]
        assert measured[0] == pytest.approx(measured[1], rel=1e-9)

"""The quality of tiles, beside its definition."""

from __future__ import annotations

from itertools import pairwise

import cv2
import numpy as np
import pytest

from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tile_quality import CELL, FLAT, quality_of
from data_prep.geometry.tiler import iter_tiles


def plain(pixels, white):
    """All five by their definitions, slowly."""
    values = pixels.reshape(*pixels.shape[:2], -1).astype(np.float64)
    side = len(values)
    lines = np.rint(np.linspace(0, side, max(1, round(side / CELL)) + 1)).astype(int)
    flat = [
        (values[a:b, c:d].std(axis=(0, 1)) < FLAT * white).all()
        for a, b in pairwise(lines)
        for c, d in pairwise(lines)
    ]
    across, down = np.abs(np.diff(values, axis=1)), np.abs(np.diff(values, axis=0))
    differences = np.concatenate([across.ravel(), down.ravel(), np.zeros(int(side == 1))])
    focus = differences.mean() / white
    return np.mean(flat), values.mean(), values.std(), focus, (values >= white).mean()


def as_tuple(quality):
    return quality.bg_fraction, quality.mean, quality.std, quality.focus, quality.saturated


def image(height, width, channels, dtype, white):
    """Texture, an empty corner, and an overexposed one."""
    rng = np.random.default_rng(3)
    shape = (height, width) if channels is None else (height, width, channels)
    values = cv2.GaussianBlur(rng.normal(size=shape), (0, 0), 1.5).reshape(shape)
    values = ((values - values.min()) / (values.max() - values.min()) * white).astype(dtype)
    values[: height // 3, : width // 2] = white // 3
    values[-height // 3 :, -width // 3 :] = white
    return values


@pytest.mark.parametrize("tile", [1, 6, 32, 40, 110])
@pytest.mark.parametrize(
    ("channels", "dtype", "white"),
    [(None, np.uint8, 255), (3, np.uint8, 255), (1, np.uint16, 4095), (3, np.uint16, 65535)],
)
def test_a_quality_is_that_of_its_definition(tile, channels, dtype, white):
    pixels = image(110, 140, channels, dtype, white)
    for top, left in ((0, 0), (110 - tile, 140 - tile), (30, 60)):
        piece = np.ascontiguousarray(pixels[top : top + tile, left : left + tile])
        expected = plain(piece, white)
        found = as_tuple(quality_of(piece, white))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("tile", "options"),
    [
        (32, {}),
        (32, {"mode": "inscribed"}),
        (32, {"edge": "pad", "include_original": True}),
        (33, {}),
    ],
)
def test_quarter_turns_have_the_quality_that_each_has_alone(tile, options):
    pixels = image(150, 190, 3, np.uint8, 255)
    spec = TileSpec(tile, 0.5, [0, 20, 90, 110, 180, 200, 270, 290], **options)
    for each in iter_tiles(pixels, spec, white=255):
        assert each.quality == quality_of(each.pixels, 255)


def test_quality_is_measured_once_for_all_quarter_turns():
    pixels = image(150, 190, 3, np.uint8, 255)
    spec = TileSpec(32, 0.5, [20, 110, 200, 290])
    tiles = list(iter_tiles(pixels, spec, white=255))
    assert len({id(each.quality) for each in tiles}) == len(tiles) // 4


def test_without_white_nothing_is_measured():
    pixels = image(80, 80, None, np.uint8, 255)
    assert all(each.quality is None for each in iter_tiles(pixels, TileSpec(32, angles=[0])))


def test_texture_in_one_channel_is_no_background():
    pixels = np.full((64, 64, 3), 200, np.uint8)
    pixels[:, :, 1] = np.random.default_rng(1).integers(0, 256, (64, 64))
    assert quality_of(pixels, 255).bg_fraction == 0

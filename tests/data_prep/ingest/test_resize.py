from __future__ import annotations

import numpy as np
import pytest

from data_prep.ingest.resize import TargetSize
from distkeras_grid.errors import ImageError


def test_what_looks_so_already_is_not_touched():
    images = np.random.default_rng(0).integers(0, 256, (3, 5, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(TargetSize(5, 7, 3).apply(images, ""), images)


def test_shrinking_averages_areas():
    image = np.zeros((1, 4, 8, 1), np.uint8)
    image[0, :2, :2] = 200
    image[0, 2:, 4:6] = 100
    image[0, 2, 4] = 20
    small = TargetSize(2, 4, 1).apply(image, "")
    assert small[0, ..., 0].tolist() == [[200, 0, 0, 0], [0, 0, 80, 0]]


def test_growing_keeps_flat_areas_flat():
    grown = TargetSize(8, 8, 3).apply(np.full((2, 3, 3, 3), 77, np.uint8), "")
    assert grown.shape == (2, 8, 8, 3)
    assert (grown == 77).all()


def test_gray_weighs_colours_and_gray_becomes_three_channels():
    red = np.zeros((1, 2, 2, 3), np.uint8)
    red[..., 0] = 100
    assert TargetSize(2, 2, 1).apply(red, "").ravel().tolist() == [30] * 4
    gray = np.array([[[[5], [9]]]], np.uint8)
    assert TargetSize(1, 2, 3).apply(gray, "").tolist() == [[[[5] * 3, [9] * 3]]]


def test_sixteen_bits_are_refused():
    with pytest.raises(ImageError, match=r"deep\.png has 16 bits"):
        TargetSize(2, 2, 1).apply(np.zeros((1, 2, 2, 1), np.uint16), "deep.png")

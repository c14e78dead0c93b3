from __future__ import annotations

import numpy as np
import pytest

from data_prep.images.intensity import (
    Normalization,
    count_values,
    normalise,
    parse_normalising,
)
from distkeras_grid.errors import ConfigurationError

RNG = np.random.default_rng(2)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(300, 200), (31, 17, 3), (1, 1, 1)])
def test_values_are_counted(dtype, shape):
    pixels = RNG.integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)
    counts = count_values(pixels)
    np.testing.assert_array_equal(counts, np.bincount(pixels.ravel(), minlength=len(counts)))
    assert counts.sum() == pixels.size


def test_large_images_are_counted_exactly(monkeypatch):
    from data_prep.images import intensity

    pixels = np.full((3, 1 << 23, 1), 7, np.uint8)
    assert count_values(pixels)[7] == 3 << 23
    monkeypatch.setattr(intensity, "COUNTED_VALUES", 5)
    small = RNG.integers(0, 9, (40, 3, 3), dtype=np.uint8)
    np.testing.assert_array_equal(count_values(small), np.bincount(small.ravel(), minlength=256))


@pytest.mark.parametrize("percent", [(0, 100), (1, 99), (0.5, 50), (25, 75), (1.37, 98.21)])
@pytest.mark.parametrize("size", [(50, 60, 1), (7, 3, 1), (1, 1, 1)])
def test_percentiles_are_those_of_numpy(percent, size):
    pixels = RNG.integers(100, 3000, size, dtype=np.uint16)
    found = Normalization("percentile", *percent).range_of(count_values(pixels))
    expected = np.percentile(pixels, percent, method="inverted_cdf")
    np.testing.assert_array_equal(found, expected)


def test_min_max_uses_the_whole_range_of_the_type():
    for dtype, white in ((np.uint8, 255), (np.uint16, 65535)):
        pixels = RNG.integers(40, 200, (50, 60, 3), dtype=dtype)
        made = normalise(pixels, Normalization("min-max").range_of(count_values(pixels)))
        assert (made.dtype, made.min(), made.max()) == (pixels.dtype, 0, white)
        low, high = float(pixels.min()), float(pixels.max())
        exact = (pixels - low) * white / (high - low)
        assert np.abs(made - exact).max() <= 0.5 + 1e-6


def test_standard_brings_images_to_one_mean_and_deviation():
    made = []
    for mean, deviation in ((900, 60), (2500, 200)):
        pixels = RNG.normal(mean, deviation, (200, 300, 1)).clip(0).round().astype(np.uint16)
        normal = Normalization("standard").range_of(count_values(pixels))
        np.testing.assert_allclose(normal[1] + normal[0], 2 * pixels.mean())
        np.testing.assert_allclose(normal[1] - normal[0], 6 * pixels.std())
        made.append(normalise(pixels, normal))
    for each in made:
        assert abs(each.mean() / 65535 - 0.5) < 0.01
        assert abs(each.std() / 65535 - 1 / 6) < 0.01


def test_an_image_of_one_value_has_no_range():
    flat = np.full((4, 4, 1), 9, np.uint8)
    for method in ("min-max", "standard"):
        made = normalise(flat, Normalization(method).range_of(count_values(flat)))
        assert made.max() == 0


@pytest.mark.parametrize(
    "text",
    [
        *("", "minmax", "percentile", "percentile:1", "percentile:99:1", "percentile:-1:99"),
        *("percentile:a:b", "percentile:1:101", "min-max:1:2", "percentile:nan:99", "standard:3"),
    ],
)
def test_other_words_are_refused(text):
    with pytest.raises(ConfigurationError, match="normalise"):
        parse_normalising(text)


def test_none_is_none():
    assert parse_normalising(None) is None
    assert parse_normalising("standard") == Normalization("standard")

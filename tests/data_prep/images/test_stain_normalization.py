"""Stains of histology: images of one tissue, stained in two ways, become alike."""

from __future__ import annotations

import numpy as np
import pytest

from data_prep.dataset.settings import TilingSettings
from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images.file_access import OpenFile
from data_prep.images.image_stats import survey
from data_prep.images.intensity import (
    normalise,
    parse_normalising,
    range_from_columns,
    range_to_columns,
)
from data_prep.images.plane_selection import PlaneSelector
from data_prep.images.stain_normalization import (
    REFERENCE,
    REFERENCE_MOST,
    apply_stain_matrix,
    find_stains,
)
from data_prep.spark.passes import inspect_image
from distkeras_grid.errors import ConfigurationError

RNG = np.random.default_rng(8)
SHAPE = (120, 150)
# Of another laboratory: other colours, and fainter.
OTHER = np.array([[0.65, 0.07], [0.70, 0.99], [0.29, 0.11]]) * 0.6


def tissue():
    """Amounts of two stains: cells, stroma, and glass."""
    kind = RNG.integers(0, 3, SHAPE)
    blue = np.where(kind == 0, RNG.uniform(0.8, 1, SHAPE), RNG.uniform(0, 0.05, SHAPE))
    pink = np.where(kind == 1, RNG.uniform(0.8, 1, SHAPE), RNG.uniform(0, 0.05, SHAPE))
    amounts = np.stack([blue, pink], axis=-1) * REFERENCE_MOST
    amounts[kind == 2] = 0
    return amounts, kind


def stained(amounts, stain_normalization):
    light = 256 * np.exp(-amounts @ stain_normalization.T) - 1
    return np.clip(np.rint(light), 0, 255).astype(np.uint8)


def test_images_of_one_tissue_become_alike():
    amounts, kind = tissue()
    mine, other = stained(amounts, REFERENCE), stained(amounts, OTHER)
    before = np.abs(mine.astype(int) - other)[kind < 2].mean()
    made = [apply_stain_matrix(image, find_stains(image)) for image in (mine, other)]
    apart = np.abs(made[0].astype(int) - made[1])[kind < 2].mean()
    assert before > 40
    assert apart < 4
    # And those of the reference stay about as they are.
    assert np.abs(made[0].astype(int) - mine)[kind < 2].mean() < 8
    for image in made:
        assert (image[kind == 2] == 255).all()


def test_a_part_is_as_in_the_whole(monkeypatch):
    from data_prep.images import stain_normalization

    image = stained(tissue()[0], OTHER)
    matrix = find_stains(image)
    whole = apply_stain_matrix(image, matrix)
    np.testing.assert_array_equal(
        apply_stain_matrix(image[31:77, 5:94], matrix), whole[31:77, 5:94]
    )
    monkeypatch.setattr(stain_normalization, "CONVERTED_PIXELS", 1000)
    np.testing.assert_array_equal(apply_stain_matrix(image, matrix), whole)


@pytest.mark.parametrize(
    "image",
    [
        np.full((60, 60, 3), 250, np.uint8),
        np.full((60, 60, 3), (120, 40, 130), np.uint8),
        np.full((60, 60, 1), 90, np.uint8),
        np.full((60, 60, 3), 900, np.uint16),
    ],
)
def test_an_image_without_two_stains_has_none(image):
    assert parse_normalising("macenko").estimate_range(image) is None


def test_what_was_found_is_stored_and_does_the_same_again():
    image = stained(tissue()[0], OTHER)
    found = survey(image, None, parse_normalising("macenko")).value_range
    stored = range_to_columns(found)
    assert stored[:2] == (None, None)
    assert range_from_columns(*stored) == found
    np.testing.assert_array_equal(
        normalise(image, found), apply_stain_matrix(image, find_stains(image))
    )
    assert range_from_columns(*range_to_columns((3.0, 9.0))) == (3.0, 9.0)
    assert range_from_columns(*range_to_columns(None)) is None


def test_a_large_image_is_measured_on_its_small_copy(monkeypatch):
    from data_prep.images import image_stats as module

    image = np.repeat(np.repeat(stained(tissue()[0], OTHER), 2, axis=0), 2, axis=1)
    whole = survey(image, None, parse_normalising("macenko")).value_range
    monkeypatch.setattr(module, "WHOLE_BYTES", 1)
    monkeypatch.setattr(module, "SMALL_PIXELS", image.shape[0] * image.shape[1] // 4)
    banded = survey(image, None, parse_normalising("macenko")).value_range
    assert banded == pytest.approx(whole, abs=0.02)


def test_an_image_without_stains_is_named():
    import cv2

    png = cv2.imencode(".png", RNG.integers(240, 256, (64, 64, 3), np.uint8))[1].tobytes()
    cutting = TilingConfig(
        *(TileSpec(32), "raw", 90, None, PlaneSelector()), normalising=parse_normalising("macenko")
    )
    assert (
        "a.png does not show two stains" in inspect_image("a.png", OpenFile.of(png), cutting).error
    )


def test_gray_tiles_have_no_stains():
    with pytest.raises(ConfigurationError, match="macenko"):
        TilingSettings("a", "b", normalise="macenko", channels="1")

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

from data_prep.ingest.transforms import (
    PASSES,
    PixelMoments,
    Transform,
    first_columns,
    orthonormal,
    principal_components,
    through_covariance,
)
from distkeras_grid.errors import DataError

WANTED = 50


@pytest.fixture(scope="module")
def images():
    """300 images of 10x10 that vary along ten directions, with a little noise."""
    rng = np.random.default_rng(4)
    hidden = rng.standard_normal((300, 10)) * np.linspace(30, 5, 10)
    pixels = 128 + hidden @ rng.standard_normal((10, 100)) / 3 + rng.normal(0, 2, (300, 100))
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8).reshape(300, 10, 10, 1)


def fitted(batches):
    moments = PixelMoments.of(batches, 100)
    mean, passed = moments.mean(), first_columns(100, moments.count, WANTED)
    for _ in range(PASSES):
        basis = orthonormal(passed)
        passed = through_covariance(batches, mean, basis)
    return mean, *principal_components(basis, passed, moments.count, WANTED)


def test_moments_of_parts_add_up_to_those_of_all(images):
    parts = [
        PixelMoments.of(np.array_split(images[:90], 2), 100),
        PixelMoments.of([images[90:]], 100),
    ]
    added = PixelMoments(sum(part.sums for part in parts))
    rows = images.reshape(300, -1).astype(np.float64)
    assert added.count == 300
    np.testing.assert_array_equal(added.sums[1:101], rows.sum(axis=0))
    np.testing.assert_allclose(added.mean(), rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(added.deviation(), rows.std(axis=0), rtol=1e-5)


def test_standardised_pixels_have_mean_0_and_deviation_1(images):
    images = images.copy()
    images[:, 0, 0] = 9  # a pixel that never changes
    moments = PixelMoments.of([images], 100)
    transform = Transform(moments.mean(), None, moments.deviation(), (10, 10, 1))
    values = transform.apply(images)
    assert (values.dtype, values.shape) == (np.float32, images.shape)
    np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-4)
    deviations = values.std(axis=0)
    assert deviations[0, 0, 0] == 0
    np.testing.assert_allclose(deviations.ravel()[1:], 1, atol=1e-4)


def test_components_are_those_of_the_singular_value_decomposition(images):
    _, components, deviations = fitted(np.array_split(images, 7))
    rows = images.reshape(300, -1) / 255.0
    _, singular, exact = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    overlaps = np.abs((components[:10] * exact[:10]).sum(axis=1))
    np.testing.assert_allclose(overlaps, 1, atol=1e-3)
    expected = singular[:WANTED] / np.sqrt(300)
    np.testing.assert_allclose(deviations[:10], expected[:10], rtol=1e-3)
    # Of the noise, which has no directions of its own, as much as can be.
    assert (deviations**2).sum() > 0.999 * (expected**2).sum()
    np.testing.assert_allclose(components @ components.T, np.eye(WANTED), atol=1e-4)


def test_projections_are_uncorrelated_and_can_be_divided_by_their_deviation(images):
    mean, components, deviations = fitted([images])
    values = Transform(mean, components, deviations, (5, 10, 1)).apply(images)
    assert values.shape == (300, 5, 10, 1)
    flat = values.reshape(300, -1).astype(np.float64)
    np.testing.assert_allclose(flat.mean(axis=0), 0, atol=1e-3)
    covariance = flat.T @ flat / 300
    np.testing.assert_allclose(covariance[:10, :10], np.eye(10), atol=0.01)
    plain = Transform(mean, components, None, (5, 10, 1)).apply(images[:3])
    np.testing.assert_allclose(plain.reshape(3, -1) / deviations, flat[:3], rtol=1e-3, atol=1e-4)


def test_signs_do_not_depend_on_how_rows_were_divided(images):
    components = fitted([images])[1]
    assert (components.max(axis=1) == np.abs(components).max(axis=1)).all()
    once, again = fitted([images])[1], fitted(np.array_split(images, 5))[1]
    np.testing.assert_allclose(once[:10], again[:10], atol=1e-2)


def test_too_few_pixels_or_images_for_the_components():
    with pytest.raises(DataError, match=r"784 .* there are 400 pixels an image and 5,000 training"):
        first_columns(400, 5000, 784)
    with pytest.raises(DataError, match="there are 1,024 pixels an image and 783 training"):
        first_columns(1024, 783, 784)
    assert first_columns(60, 50, 50).shape == (60, 60)


def test_what_was_fitted_can_be_read_again(images):
    mean = images[0].ravel().astype(np.float32)
    content = Transform(mean, None, mean + 1, (10, 10, 1)).to_bytes()
    with np.load(BytesIO(content)) as file:
        assert set(file.files) == {"mean", "deviation"}
        np.testing.assert_array_equal(file["deviation"], mean + 1)

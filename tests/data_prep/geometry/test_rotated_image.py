import itertools

import cv2
import numpy as np
import pytest

from data_prep.geometry.grid import RotatedFrame, TileSpec
from data_prep.geometry.rotated_image import BLOCK, RotatedImage, ScratchBuffer
from data_prep.images.chunked_image import ChunkedImage
from tests.data_prep.array_regions import ArrayRegions

RNG = np.random.default_rng(5)
INTERPOLATIONS = ("nearest", "linear", "cubic", "lanczos4")
ANGLES = (0.1, 5, 30, 45, 77.5, 89.9)


def noise(shape, dtype):
    """The hardest image: neighbours differ as much as they can."""
    return (RNG.random(shape) * (np.iinfo(dtype).max if dtype != np.float32 else 1)).astype(dtype)


def whole(turned):
    height, width = turned.shape[:2]
    return turned.read(0, 0, width, height).copy()


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("channels", [(), (3,)])
@pytest.mark.full
def test_a_pixel_has_one_value_whatever_is_read(interpolation, dtype, channels):
    image, spec = noise((150, 201, *channels), dtype), TileSpec(interpolation=interpolation)
    for angle, cache_bytes in itertools.product(ANGLES, (0, 200_000, 1 << 30)):
        frame = RotatedFrame(201, 150, angle)
        expected = whole(RotatedImage(image, frame, spec))
        turned = RotatedImage(image, frame, spec, cache_bytes)
        for _ in range(6):
            (left, right), (top, bottom) = (
                np.sort(RNG.integers(0, side + 1, 2)).tolist() for side in turned.shape[1::-1]
            )
            found = turned.read(left, top, right, bottom)
            np.testing.assert_array_equal(found, expected[top:bottom, left:right])


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("edge", ["drop", "pad"])
def test_a_file_that_is_read_part_by_part_gives_the_same_pixels(interpolation, edge):
    image = noise((330, 420, 3), np.uint8)
    spec = TileSpec(interpolation=interpolation, edge=edge)
    for angle in ANGLES:
        frame = RotatedFrame(420, 330, angle)
        raster = ChunkedImage(ArrayRegions(image, (16, 420)), cache_bytes=1 << 16)
        parts = whole(RotatedImage(raster, frame, spec, cache_bytes=0))
        np.testing.assert_array_equal(parts, whole(RotatedImage(image, frame, spec)))
        raster.close()


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (2, 90), (64, 63), (65, 64)])
def test_tiny_and_narrow_images(size, interpolation):
    """OpenCV did not end where a single row was to be reflected."""
    image, spec = np.full(size, 9, np.uint8), TileSpec(interpolation=interpolation)
    for angle in (5, 30, 45):
        turned = RotatedImage(image, RotatedFrame(size[1], size[0], angle), spec)
        assert whole(turned)[turned.shape[0] // 2, turned.shape[1] // 2] == 9


def test_blocks_are_computed_when_they_are_needed_and_once(monkeypatch):
    image, calls = noise((500, 700), np.uint8), []
    warp = cv2.warpAffine
    monkeypatch.setattr(cv2, "warpAffine", lambda *args: (calls.append(1), warp(*args))[1])
    turned = RotatedImage(image, RotatedFrame(700, 500, 20), TileSpec(), room=ScratchBuffer())
    turned.read(200, 200, 200 + BLOCK, 200 + BLOCK)
    assert 1 <= len(calls) <= 4
    for _ in range(2):
        whole(turned)
    assert len(calls) <= -(-turned.shape[0] // BLOCK) * -(-turned.shape[1] // BLOCK)

"""What one pass over an image finds out, whole or part by part."""

from __future__ import annotations

from io import BytesIO

import cv2
import numpy as np
import pytest

from data_prep.images import image_stats as module
from data_prep.images.content_hash import pixel_digest
from data_prep.images.image_stats import survey
from data_prep.images.open_image import open_image
from data_prep.images.plane_selection import as_channels
from data_prep.splits.fingerprint import fingerprint, parse
from tests.data_prep.image_checks import tiff

RNG = np.random.default_rng(1)
COLOUR = RNG.integers(0, 256, (301, 203, 3), dtype=np.uint8)
GRAY = COLOUR[:, :, :1]
IMAGES = {
    "colour": COLOUR,
    "gray": GRAY,
    "gray as colour": GRAY.repeat(3, axis=2),
    "gray but for the last pixel": np.concatenate([GRAY.repeat(3, axis=2)[:-1], COLOUR[-1:]]),
    "deep": RNG.integers(0, 4096, (301, 203, 1), dtype=np.uint16),
    "8 bits in 16": COLOUR.astype(np.uint16) * 257,
    "gray, 8 bits in 16": GRAY.repeat(3, axis=2).astype(np.uint16) * 257,
}


def by_part(pixels):
    kind = "rgb" if pixels.shape[2] == 3 else "minisblack"
    stored = pixels if pixels.shape[2] == 3 else pixels[:, :, 0]
    content = tiff(stored, tile=(64, 64), photometric=kind)
    return open_image(BytesIO(content), "x", region_bytes=0).pixels


@pytest.mark.parametrize("kind", ["raster", "array"])
@pytest.mark.parametrize("channels", [None, 1, 3])
@pytest.mark.parametrize("pixels", IMAGES.values(), ids=IMAGES)
def test_parts_say_what_the_whole_says(pixels, channels, kind, monkeypatch):
    monkeypatch.setattr(module, "SMALL_PIXELS", 10_000)
    monkeypatch.setattr(module, "WHOLE_BYTES", 0)
    monkeypatch.setattr(module, "BAND_BYTES", 50_000)
    found = survey(by_part(pixels) if kind == "raster" else pixels, channels)
    assert found.highest == pixels.max()
    assert found.pixel_sha256 == pixel_digest(as_channels(pixels, channels or pixels.shape[2]))
    if channels is None and pixels.shape[2] == 3:
        assert found.is_gray == bool((pixels == pixels[:, :, :1]).all())
    height, width = 301 // found.shrink, 203 // found.shrink
    assert found.small.shape == (height, width, pixels.shape[2])
    part = pixels[: height * found.shrink, : width * found.shrink].astype(float)
    means = part.reshape(height, found.shrink, width, found.shrink, -1).mean(axis=(1, 3))
    assert np.abs(means - found.small).max() <= 0.51


def test_likeness_is_found_in_the_small_copy(monkeypatch):
    monkeypatch.setattr(module, "SMALL_PIXELS", 100_000)
    pixels = cv2.GaussianBlur(RNG.integers(0, 256, (900, 1200), dtype=np.uint8), (0, 0), 3)
    pixels = cv2.normalize(pixels, None, 30, 220, cv2.NORM_MINMAX)[:, :, np.newaxis]
    found = survey(by_part(pixels))
    assert found.shrink > 1
    seen = parse(fingerprint(found.small, found.shrink))
    assert (seen.width, seen.height) == (1200, 900)

"""Images that are made smaller part by part, beside OpenCV's whole ones."""

from __future__ import annotations

import tracemalloc

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.images import area_downsample
from data_prep.images.area_downsample import Shrunk
from data_prep.images.chunked_image import ChunkedImage
from tests.data_prep.array_regions import ArrayRegions, Noise

pytestmark = pytest.mark.slow


def whole(pixels, width, height):
    small = cv2.resize(pixels, (width, height), None, 0, 0, cv2.INTER_AREA)
    return small.reshape(height, width, pixels.shape[2])


@st.composite
def sides(draw):
    """Lengths before and after: any, one that is a multiple of the other, or the same."""
    target = draw(st.integers(1, 60))
    return draw(
        st.sampled_from([target * draw(st.integers(1, 60)), target + draw(st.integers(0, 300))])
    ), target


@settings(max_examples=150, deadline=None)
@given(sides(), sides(), st.sampled_from([1, 3]), st.sampled_from(["uint8", "uint16"]), st.data())
@pytest.mark.full
def test_any_part_has_the_values_of_the_whole(across, down, channels, dtype, data):
    (width, new_width), (height, new_height) = across, down
    rng = np.random.default_rng(width * 1000 + height)
    most = np.iinfo(dtype).max
    pixels = rng.integers(0, most + 1, (height, width, channels), dtype=dtype)
    expected = whole(pixels, new_width, new_height)
    small = Shrunk(ChunkedImage(ArrayRegions(pixels)), new_width, new_height)
    left, right = sorted(data.draw(st.tuples(*[st.integers(0, new_width)] * 2)))
    top, bottom = sorted(data.draw(st.tuples(*[st.integers(0, new_height)] * 2)))
    found = small.read(0, 0, new_width, new_height)
    # OpenCV rounds half a value down where this rounds it up.
    assert np.abs(found.astype(int) - expected).max() <= 1
    if left < right and top < bottom:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(area_downsample, "GROUP_BYTES", data.draw(st.sampled_from([1, 3000])))
            again = Shrunk(ChunkedImage(ArrayRegions(pixels)), new_width, new_height)
        part = again.read(left, top, right, bottom)
        np.testing.assert_array_equal(part, found[top:bottom, left:right])


@pytest.mark.parametrize("factor", [4, 4.3])
def test_memory_holds_a_band_however_high_the_image(monkeypatch, factor):
    monkeypatch.setattr(area_downsample, "BAND_BYTES", 256 << 10)
    monkeypatch.setattr(area_downsample, "GROUP_BYTES", 256 << 10)
    peaks = []
    for height in (4000, 12000):
        image = ChunkedImage(Noise((height, 2000, 3)))
        shrunk = Shrunk(image, int(2000 / factor), int(height / factor))
        small = ChunkedImage(shrunk, cache_bytes=1 << 20)
        tracemalloc.start()
        try:
            small.max()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
            small.close()
    # The large image has 24 million bytes.
    assert peaks[0] < 6 << 20
    assert peaks[1] < 1.2 * peaks[0]

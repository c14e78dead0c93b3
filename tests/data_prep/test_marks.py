"""What is drawn into an image, and what only looks like it."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from data_prep.images import decode_image
from data_prep.marks import Mark, find_marks


def texture(height=400, width=500, dtype=np.uint8):
    noise = np.random.default_rng(1).normal(size=(height, width))
    smooth = cv2.GaussianBlur(noise, (0, 0), 3)
    scaled = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return (30 + scaled * 190).astype(dtype)[:, :, np.newaxis]


def as_jpeg(pixels):
    content = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes()
    return decode_image(content, "x")


def kinds(pixels, white=255):
    return sorted(mark.kind for mark in find_marks(pixels, white))


@pytest.mark.parametrize("value", [0, 90, 255])
@pytest.mark.parametrize("with_text", [False, True])
def test_data_bars(value, with_text):
    pixels = texture()
    pixels[360:] = value
    if with_text:
        text = "20 kV  x 5,000  10 um"
        cv2.putText(pixels, text, (20, 388), cv2.FONT_HERSHEY_SIMPLEX, 0.9, (128,), 2)
    (mark,) = [mark for mark in find_marks(pixels, 255) if mark.kind == "strip"]
    assert (mark.left, mark.right, mark.bottom) == (0, 500, 400)
    assert abs(mark.top - 360) <= 2


@pytest.mark.parametrize("turns", range(4))
def test_rims_on_all_sides(turns):
    pixels = texture()
    pixels[:, :7] = 0
    marks = find_marks(np.ascontiguousarray(np.rot90(pixels, turns)), 255)
    expected = [(0, 0, 7, 400), (0, 493, 400, 500), (493, 0, 500, 400), (0, 0, 400, 7)][turns]
    assert marks == [Mark("strip", *expected)]


@pytest.mark.parametrize("value", [0, 255])
@pytest.mark.parametrize("channels", [1, 3])
def test_scale_bars(value, channels):
    pixels = np.repeat(texture(), channels, axis=2)
    cv2.rectangle(pixels, (340, 350), (460, 360), (value,) * channels, cv2.FILLED)
    (mark,) = find_marks(pixels, 255)
    assert mark.kind == "bar"
    assert (
        np.abs(
            np.subtract((mark.left, mark.top, mark.right, mark.bottom), (340, 350, 461, 361))
        ).max()
        <= 1
    )
    assert kinds(as_jpeg(pixels)) == ["bar"]


def test_a_scale_bar_in_a_box():
    pixels = texture()
    pixels[330:380, 300:480] = 255
    pixels[360:370, 320:460] = 0
    assert "bar" in kinds(pixels)


def test_16_bits():
    pixels = texture(dtype=np.uint16) * 16
    pixels[360:] = 0
    assert kinds(pixels, 4095) == ["strip"]


def test_what_is_no_mark():
    assert find_marks(texture(), 255) == []
    dark = np.random.default_rng(0).poisson(3, (300, 400, 1)).astype(np.uint8)
    assert kinds(dark) == []
    # Black all over, as an empty field of fluorescence.
    assert kinds(np.zeros((300, 400, 1), np.uint8)) == []
    # A bright specimen that is overexposed has no straight edges.
    blob = texture()
    cv2.ellipse(blob, (250, 200), (150, 20), 0, 0, 360, (255,), cv2.FILLED)
    assert kinds(blob) == []


def test_no_sample_has_one(samples):
    found = {
        path.name: kinds(decode_image(path.read_bytes(), path.name))
        for path in samples.glob("*/*.png")
    }
    assert len(found) == 60
    assert {name: marks for name, marks in found.items() if marks} == {}


def test_marks_in_zones():
    mark = Mark("strip", 0, 360, 500, 400)
    square = np.array([[0.0, 350], [500, 350], [500, 400], [0, 400]])
    assert mark.lies_in((square,))
    assert not mark.lies_in((square + 20,))

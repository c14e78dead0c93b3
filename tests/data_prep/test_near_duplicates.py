"""Pictures of one place are found, whatever was done to them; pictures of two places are not."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from data_prep.images import decode_image
from data_prep.likeness import burned_in, fingerprint, parse
from data_prep.near_duplicates import find_near_duplicates
from distkeras_grid.errors import DataError


@pytest.fixture(scope="module")
def micrographs(samples):
    paths = sorted(samples.glob("class*/*.png"))[::4]
    return [decode_image(path.read_bytes(), path.name) for path in paths]


def pairs(*pictures):
    prints = {f"{i}": fingerprint(picture) for i, picture in enumerate(pictures)}
    return [(found.one, found.other) for found in find_near_duplicates(prints)]


def resized(pixels, factor):
    return cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)[:, :, None]


def as_jpeg(pixels, quality):
    content = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return cv2.imdecode(content, cv2.IMREAD_GRAYSCALE)[:, :, None]


def fields(pixels, shared):
    """Two neighbouring fields of view that share a part of their width."""
    width = pixels.shape[1]
    field = round(width / (2 - shared))
    return pixels[:, :field], pixels[:, width - field :]


# The part of pairs that must be found; scripts over 330 micrographs found these parts and more.
@pytest.mark.parametrize(
    ("change", "least"),
    [
        (lambda p: (p, as_jpeg(p, 20)), 1.0),
        (lambda p: (p, np.clip(p * 1.2 + 10, 0, 255).astype(np.uint8)), 1.0),
        (lambda p: (p, p.astype(np.uint16) * 200), 1.0),
        (lambda p: (p, p.repeat(3, axis=2)), 1.0),
        (lambda p: (p, np.rot90(p)), 0.9),
        (lambda p: (p, resized(p, 0.5)), 0.9),
        (lambda p: (p, as_jpeg(resized(p, 0.7), 60)), 0.9),
        (lambda p: (p, p[: int(p.shape[0] * 0.7), int(p.shape[1] * 0.3) :]), 0.8),
        (lambda p: fields(p, 0.5), 0.8),
    ],
    ids=["jpeg", "bright", "16 bits", "colour", "turned", "half", "0.7 jpeg", "crop", "fields"],
)
def test_what_was_done_to_a_picture(micrographs, change, least):
    every = [np.ascontiguousarray(each) for picture in micrographs for each in change(picture)]
    found = pairs(*every)
    right = {(f"{i}", f"{i + 1}") for i in range(0, len(every), 2)}
    assert {tuple(sorted(pair, key=int)) for pair in found} <= right
    assert len(found) >= least * len(right)


def with_bar(pixels, text="0.5 mm"):
    """Burn a scale bar in a white box into the lower right corner."""
    height, width = pixels.shape[:2]
    drawn = pixels[:, :, 0].copy()
    box = drawn[height - height // 4 :, width // 3 :]
    box[:] = 255
    cv2.putText(box, text, (10, 35), cv2.FONT_HERSHEY_SIMPLEX, 1.2, 0, 2)
    cv2.putText(box, "15 kV x200", (150, 30), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 0, 1)
    cv2.putText(box, "SE 2026-11-22", (100, 78), cv2.FONT_HERSHEY_SIMPLEX, 0.7, 0, 1)
    box[-30:-22, 10:290] = 0
    return drawn[:, :, None]


def test_a_burned_in_scale_bar_joins_nothing(micrographs):
    assert pairs(*map(with_bar, micrographs)) == []
    bar = burned_in(with_bar(micrographs[0])[:, :, 0])
    height, width = bar.shape
    assert bar[height - height // 4 + 2 :, width // 3 + 2 :].mean() > 0.95
    assert bar[: height // 2].mean() < 0.1


def test_a_scale_bar_does_not_hide_a_copy(micrographs):
    every = [each for picture in micrographs for each in (picture, with_bar(picture))]
    assert len(pairs(*every)) >= 0.9 * len(micrographs)


def test_pictures_in_which_nothing_can_be_seen_join_nothing():
    rng = np.random.default_rng(1)
    y, x = np.mgrid[-1:1:300j, -1:1:400j]
    lamp = 150 - 60 * (x * x + y * y)
    noisy = [lamp + rng.normal(0, 3, lamp.shape) for _ in range(6)]
    plain = [np.full((300, 400), value) for value in (0, 128, 255)]
    pictures = [each.clip(0, 255).astype(np.uint8)[:, :, None] for each in [*noisy, *plain]]
    assert pairs(*pictures) == []


def test_of_a_night_only_pairs_with_a_new_picture_are_looked_at(micrographs):
    first, second = micrographs[:2]
    prints = {
        name: fingerprint(picture)
        for name, picture in {
            "a": first,
            "b": resized(first, 0.8),
            "c": second,
            "d": resized(second, 0.8),
        }.items()
    }
    found = find_near_duplicates(prints, new={"d"})
    assert [(each.one, each.other) for each in found] == [("c", "d")]
    assert "scale 0.80" in found[0].why
    assert find_near_duplicates(prints, new=set()) == []
    assert find_near_duplicates({}) == []


def test_a_fingerprint_is_small_and_says_when_it_is_damaged(micrographs):
    content = fingerprint(micrographs[0])
    assert len(content) < 8000
    assert fingerprint(micrographs[0]) == content
    read = parse(content)
    assert (read.height, read.width, 1) == micrographs[0].shape
    assert abs(float(read.thumbnail.mean())) < 1e-3
    for damaged in (b"", content[:-1], content + b"x", b"\xff" + content[1:]):
        with pytest.raises(DataError):
            parse(damaged)

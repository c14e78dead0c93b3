"""Pairs that share keys are proposed, in parts of any size and with bounded memory."""

from __future__ import annotations

import numpy as np
import pytest

from data_prep.splits import candidate_search
from data_prep.splits.candidate_search import find_candidates
from data_prep.splits.fingerprint import Fingerprint

pytestmark = pytest.mark.slow

ALL = np.ones(200, bool)


def picture(descriptors, phash=None):
    return Fingerprint(600, 600, None, descriptors, None, phash)


def pictures_of(seed, count=200, features=40, shared=0):
    """Pictures; every tenth has some features of the one before."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(0, 256, (features, 32), np.uint8) for _ in range(count)]
    for place in range(10, count, 10):
        made[place][:shared] = made[place - 1][:shared]
    return [picture(each, int(rng.integers(1 << 62))) for each in made]


def bursts(seed, frames):
    """Pictures of which so many in a row show one place, each with some features of its own."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(200 // frames):
        place = rng.integers(0, 256, (40, 32), np.uint8)
        for _ in range(frames):
            one = place.copy()
            others = rng.random(40) < 0.2
            one[others] = rng.integers(0, 256, (int(others.sum()), 32), np.uint8)
            made.append(picture(one))
    return made


def candidates(pictures, wanted):
    return find_candidates(pictures.__getitem__, wanted)


def with_drawing(seed):
    """Pictures of which all have twelve features in common."""
    drawn = np.random.default_rng(seed).integers(0, 256, (12, 32), np.uint8)
    pictures = pictures_of(seed + 1, shared=30)
    for each in pictures:
        each.descriptors[:12] = drawn
    return pictures


MADE = {
    "few": lambda: pictures_of(1, shared=12),
    "bursts": lambda: bursts(2, 20),
    "crowd": lambda: with_drawing(3),
    "hashes": lambda: alike(4),
}


@pytest.mark.parametrize("part", [1.0, 0.1])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_the_parts_in_which_pairs_are_counted_change_nothing(monkeypatch, make, part):
    pictures, wanted = make(), np.random.default_rng(1).random(200) < part
    whole = [*candidates(pictures, wanted)]
    assert len(whole) > 2
    monkeypatch.setattr(candidate_search, "PARTS", 100)
    monkeypatch.setattr(candidate_search, "CHUNK", 7)
    monkeypatch.setattr(candidate_search, "PAIRS", 7)
    assert [*candidates(pictures, wanted)] == whole


def test_without_a_feature_or_a_hash_nothing_is_proposed():
    nothing = [picture(np.zeros((0, 32), np.uint8))] * 3
    found = candidates(nothing, np.ones(3, bool))
    assert [*found] == []
    assert not found.cut_short.any()


def alike(seed):
    """Pictures without features whose hashes differ in few bits, or in none."""
    rng = np.random.default_rng(seed)
    nothing = np.zeros((0, 32), np.uint8)
    return [picture(nothing, 1 << int(rng.integers(64))) for _ in range(200)]


def test_copies_are_held_wherever_they_stand_among_pictures_that_look_alike(monkeypatch):
    """The first pictures took the place of all others."""
    monkeypatch.setattr(candidate_search, "PAIRS", 500)
    monkeypatch.setattr(candidate_search, "MOST_PAIRS", 0)
    monkeypatch.setattr(candidate_search, "BEST_OF_EACH", 5)
    pictures = alike(7)
    found = candidates(pictures, ALL)
    copies = {
        (i, j)
        for j in range(200)
        for i in range(max(0, j - 20), j)
        if pictures[i].phash == pictures[j].phash
    }
    assert found.cut_short.all()
    assert len(found.ones) <= 2 * 5 * 200
    kept = {(i, j) for i, j, _ in found}
    assert len(copies) > 50
    assert len(copies & kept) > 0.9 * len(copies)

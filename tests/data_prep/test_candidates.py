"""Pairs that share keys are proposed, in parts of any size and with bounded memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from data_prep import candidates
from data_prep.candidates import LINKS, Tally, _shared_keys, find_candidates
from data_prep.likeness import Sketch

ALL = np.ones(200, bool)


def sketches(seed, count=200, features=40, shared=0):
    """Pictures; every tenth has some features of the one before."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(0, 256, (features, 32), np.uint8) for _ in range(count)]
    for place in range(10, count, 10):
        made[place][:shared] = made[place - 1][:shared]
    return [Sketch(each, int(rng.integers(1 << 62))) for each in made]


def bursts(seed, frames):
    """Pictures of which so many in a row show one place, each with some features of its own."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(200 // frames):
        place = rng.integers(0, 256, (40, 32), np.uint8)
        for _ in range(frames):
            one = place.copy()
            one[rng.random(40) < 0.2] = rng.integers(0, 256, 32, np.uint8)
            made.append(Sketch(one, None))
    return made


def proposed(pictures, wanted=ALL):
    return {(i, j): share for i, j, share in find_candidates(pictures, wanted)}


@pytest.mark.parametrize("rows", [1 << 22, 50])
def test_keys_that_pictures_share_are_found_with_whose_they_are(monkeypatch, rows):
    monkeypatch.setattr(candidates, "ROWS", rows)
    rng = np.random.default_rng(5)
    chosen = rng.choice(256, 20, replace=False)
    pictures = sketches(0, shared=10)
    wanted = rng.random(200) < 0.1
    parts = [*_shared_keys(pictures, chosen, wanted)]
    bits = [np.unpackbits(each.descriptors, axis=1, bitorder="little") for each in pictures]
    every = [(tuple(row[chosen]), i) for i, each in enumerate(bits) for row in each]
    expected = {}
    for key, owner in every:
        expected.setdefault(key, set()).add(owner)
    shared = {
        key: each for key, each in expected.items() if len(each) > 1 and wanted[list(each)].any()
    }
    found = {}
    for part, (keys, owners) in enumerate(parts):
        for key, owner in zip(keys.tolist(), owners.tolist(), strict=True):
            found.setdefault(key, (part, set()))[1].add(owner)
            # All features with one key are in one part.
            assert found[key][0] == part
    sets = Counter(frozenset(owners) for _, owners in found.values())
    assert shared
    assert Counter(map(frozenset, shared.values())) <= sets
    # A hash of 32 bits lets few others through.
    assert sets.total() < 1.2 * len(shared) + 10
    assert (len(parts) > 1) == (rows == 50)


@pytest.mark.parametrize("make", [lambda: sketches(1, shared=12), lambda: bursts(2, 20)])
def test_the_parts_in_which_pairs_are_counted_change_nothing(monkeypatch, make):
    pictures = make()
    whole = proposed(pictures)
    assert len(whole) > 10
    monkeypatch.setattr(candidates, "ROWS", 30)
    monkeypatch.setattr(candidates, "PAIRS", 7)
    assert proposed(pictures) == whole


def test_bursts_propose_their_own_frames_only():
    pairs = proposed(bursts(3, 20))
    assert set(pairs) <= {
        (i, j) for i in range(200) for j in range(i + 1, 200) if i // 20 == j // 20
    }
    assert len(pairs) > 0.9 * 10 * 190
    assert set(pairs.values()) == {0.0}


def test_one_key_of_more_features_than_a_part_has_is_a_part(monkeypatch):
    monkeypatch.setattr(candidates, "ROWS", 5)
    pictures = [Sketch(np.full((12, 32), 7, np.uint8), None)] * 3
    assert set(proposed(pictures, np.ones(3, bool))) == {(0, 1), (0, 2), (1, 2)}


def test_without_a_feature_or_a_hash_nothing_is_proposed():
    nothing = [Sketch(np.zeros((0, 32), np.uint8), None)] * 3
    found = find_candidates(nothing, np.ones(3, bool))
    assert [*found] == []
    assert not found.cut_short.any()


class TestTally:
    def test_it_counts(self, monkeypatch):
        monkeypatch.setattr(candidates, "PAIRS", 10)
        rng = np.random.default_rng(0)
        arrays = [rng.integers(0, 30, size) for size in (0, 3, 25, 1, 1, 14)]
        tally = Tally(100, 30)
        tally.add(arrays[:4])
        tally.add(iter(arrays[4:]))
        expected = Counter(np.concatenate(arrays).tolist())
        pairs, votes = tally.counted()
        assert dict(zip(pairs.tolist(), votes.tolist(), strict=True)) == expected
        pairs, votes = tally.counted(2)
        assert pairs.tolist() == sorted(pair for pair, times in expected.items() if times > 1)
        assert votes.min() == 2
        assert not tally.cut_short.any()

    def test_the_pairs_with_most_votes_are_held_and_the_pictures_of_others_are_told(self):
        tally = Tally(10, 2)
        tally.add([np.array([12, 12, 12, 34, 56, 56, 78])])
        pairs, votes = tally.counted()
        assert (pairs.tolist(), votes.tolist()) == ([12, 56], [3, 2])
        assert np.flatnonzero(tally.cut_short).tolist() == [3, 4, 7, 8]

    def test_no_more_than_the_most_are_held_at_any_time(self, monkeypatch):
        monkeypatch.setattr(candidates, "PAIRS", 50)
        rng = np.random.default_rng(0)
        tally = Tally(1000, 100)
        for _ in range(40):
            tally.add([rng.integers(0, 10**6, 30)])
            assert len(tally._pairs) <= 100
            assert sum(map(len, tally._waiting)) < 50


def test_a_crowd_proposes_few_neighbours_that_must_agree_in_a_part():
    rng = np.random.default_rng(4)
    drawn = rng.integers(0, 256, (12, 32), np.uint8)
    pictures = sketches(5)
    for each in pictures:
        each.descriptors[:12] = drawn
    pairs = proposed(pictures)
    assert len(pairs) <= LINKS * len(pictures)
    assert set(pairs.values()) == {candidates.LEAST_SHARE}

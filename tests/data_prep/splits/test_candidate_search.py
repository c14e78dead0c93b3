"""Pairs that share keys are proposed, in parts of any size and with bounded memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from data_prep.splits import candidate_search
from data_prep.splits.candidate_search import LINKS, VoteCounter, _shared_keys, find_candidates
from data_prep.splits.fingerprint import Fingerprint

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


def proposed(pictures, wanted=ALL):
    return {(i, j): share for i, j, share in candidates(pictures, wanted)}


def with_drawing(seed):
    """Pictures of which all have twelve features in common."""
    drawn = np.random.default_rng(seed).integers(0, 256, (12, 32), np.uint8)
    pictures = pictures_of(seed + 1, shared=30)
    for each in pictures:
        each.descriptors[:12] = drawn
    return pictures


def test_keys_that_pictures_share_are_found_with_whose_they_are():
    chosen = np.random.default_rng(5).choice(256, 20, replace=False)
    pictures = pictures_of(0, shared=10)
    expected = {}
    for place, each in enumerate(pictures):
        for row in np.unpackbits(each.descriptors, axis=1, bitorder="little"):
            expected.setdefault(tuple(row[chosen]), []).append(place)
    shared = [owners for owners in expected.values() if len(owners) > 1]
    found = {}
    for part, (keys, owners) in enumerate(_shared_keys(pictures.__getitem__, chosen, 200)):
        for key, owner in zip(keys.tolist(), owners.tolist(), strict=True):
            found.setdefault(key, (part, []))[1].append(owner)
            # All features with one key are in one part.
            assert found[key][0] == part
    assert len(shared) > 100
    assert sorted(owners for _, owners in found.values()) == sorted(shared)


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


def test_bursts_propose_their_own_frames_only():
    pairs = proposed(bursts(3, 20))
    assert set(pairs) <= {
        (i, j) for i in range(200) for j in range(i + 1, 200) if i // 20 == j // 20
    }
    assert len(pairs) > 0.9 * 10 * 190
    assert set(pairs.values()) == {0.0}


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


class TestTally:
    def test_it_counts(self, monkeypatch):
        monkeypatch.setattr(candidate_search, "PAIRS", 10)
        rng = np.random.default_rng(0)
        arrays = [rng.integers(0, 30, size) for size in (0, 3, 25, 1, 1, 14)]
        tally = VoteCounter(100)
        tally.add(arrays[:4])
        tally.add(iter(arrays[4:]))
        expected = Counter(np.concatenate(arrays).tolist())
        pairs, votes = tally.pairs()
        assert dict(zip(pairs.tolist(), votes.tolist(), strict=True)) == expected
        pairs, votes = tally.pairs(2)
        assert pairs.tolist() == sorted(pair for pair, times in expected.items() if times > 1)
        assert votes.min() == 2
        assert not tally.cut_short.any()

    @pytest.fixture
    def _two_each(self, monkeypatch):
        monkeypatch.setattr(candidate_search, "MOST_PAIRS", 0)
        monkeypatch.setattr(candidate_search, "BEST_OF_EACH", 2)

    @pytest.mark.usefixtures("_two_each")
    def test_the_best_pairs_of_either_picture_are_held(self):
        tally = VoteCounter(10)
        # Picture 9 has a pair with each other one; votes grow with their numbers.
        hub = np.repeat(np.arange(9) * 10 + 9, np.arange(1, 10))
        among = np.array([i * 10 + j for i in range(9) for j in range(i + 1, 9)]).repeat(20)
        tally.add([hub, among])
        pairs, votes = tally.pairs()
        assert {79, 89} <= set(pairs.tolist())
        assert not {9, 19, 29, 39, 49, 59, 69} & set(pairs.tolist())
        assert set(votes.tolist()) == {8, 9, 20}
        assert tally.cut_short.all()

    @pytest.mark.usefixtures("_two_each")
    def test_all_are_held_while_they_are_few(self):
        tally = VoteCounter(10)
        proposed = np.array([i * 10 + j for i in range(9) for j in range(i + 1, 10)])
        tally.add([proposed[:40]])
        assert tally.pairs()[0].tolist() == proposed[:40].tolist()
        assert not tally.cut_short.any()
        tally.add([proposed])
        assert len(tally.pairs()[0]) <= 2 * 10
        assert tally.cut_short.any()

    def test_votes_may_be_a_property_of_the_pair(self):
        tally = VoteCounter(10, lambda pairs: pairs % 7)
        tally.add([np.array([12, 12, 12, 34, 57])])
        pairs, votes = tally.pairs()
        assert (pairs.tolist(), votes.tolist()) == ([12, 34, 57], [5, 6, 1])

    @pytest.mark.usefixtures("_two_each")
    def test_memory_does_not_grow_with_what_is_proposed(self, monkeypatch):
        monkeypatch.setattr(candidate_search, "PAIRS", 50)
        rng = np.random.default_rng(0)
        tally = VoteCounter(100)
        for _ in range(100):
            one, other = np.sort(rng.choice(100, (2, 30)), axis=0)
            tally.add([one * 100 + other])
            assert len(tally._pairs) <= 2 * 2 * 100
            assert sum(map(len, tally._waiting)) < 50


def test_a_crowd_proposes_few_neighbours_that_must_agree_in_a_part():
    pairs = proposed(with_drawing(5))
    assert len(pairs) <= LINKS * 200
    shares = {share: {j for (_, j), each in pairs.items() if each == share} for share in (0, 1 / 3)}
    assert set(pairs.values()) == {0.0, candidate_search.LEAST_SHARE}
    # Those that share other features, too, need no part.
    assert shares[0] == set(range(10, 200, 10))

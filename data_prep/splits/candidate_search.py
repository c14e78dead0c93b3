"""Candidates for near-duplicates: pairs of pictures that share features or a hash.

Bits of the features and of the thumbnails' hashes are keys; what shares keys is proposed (locality-
sensitive hashing: Indyk and Motwani, STOC 1998). The memory that this takes does not grow with the
number of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.splits.fingerprint import DESCRIPTOR, Fingerprint

# Largest number of bits in which the hashes of two thumbnails differ; those of different places
# differ in 20 or more. Five bands find all pairs that differ in 4 bits, and most of the others.
HASH_BITS = 8
HASH_BANDS = (13, 13, 13, 13, 12)
# Among pictures with one band in common, a pair has fewer others than this between its two. Without
# a limit, pictures that all look alike propose all pairs.
HASH_CROWD = 256
# Tables of the index over features, and number of features that must share keys.
TABLES = 8
LEAST_VOTES = 2
# Number of pictures whose keys are made at a time: 12 MB of features.
CHUNK = 2048
# Number of others to which a picture is joined, even if the links join nothing new: if a picture is
# replaced later, the others stay joined.
LINKS = 3
# A feature that more pictures share belongs to a long series of one place, or to something that was
# drawn into all of them. So it proposes only neighbours, and these must agree in this part of the
# features of one picture: what was drawn into two different pictures is a smaller part.
CROWD = 32
LEAST_SHARE = 1 / 3
# Keys are grouped in so many parts, one after the other.
PARTS = 8
# Number of pairs that are counted at a time: 17 MB in each array of them.
PAIRS = 1 << 21
# If there are more than `MOST_PAIRS` pairs, and more than twice `BEST_OF_EACH` for each picture,
# only the `BEST_OF_EACH` most likely ones of each picture are kept, for each kind of evidence.
# Bursts of 20 frames propose 10 for each picture, so nothing of them is dropped.
BEST_OF_EACH, MOST_PAIRS = 16, 1 << 20

ReadPrint = Callable[[int], Fingerprint]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Pairs of pictures that may show the same place, the most likely ones first."""

    # ones and others: Places of the pictures in the sequence that was searched; `ones` are the
    # smaller ones
    ones: NDArray[np.int64]
    others: NDArray[np.int64]
    # Part of the features that must agree: `LEAST_SHARE` if nothing else than features of a crowd
    # proposes the pair, or the thumbnails of two pictures that have such features; 0 otherwise
    shares: NDArray[np.float64]
    cut_short: NDArray[np.bool_]  # Wanted pictures of which some evidence for a pair was not held

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        """Yield the two pictures of each pair and its part."""
        for place in range(len(self.ones)):
            yield int(self.ones[place]), int(self.others[place]), float(self.shares[place])


def find_candidates(read: ReadPrint, wanted: NDArray[np.bool_]) -> Candidates:
    """Return pairs of pictures that may show the same place.

    `read`: returns the fingerprint of a picture, by its place. `wanted`: only pairs with one of
    these are looked for.
    """
    count = len(wanted)
    few, crowd, crowded = _tally_features(read, wanted)
    phashes = [read(place).phash for place in range(count)]
    hashes = np.array([each or 0 for each in phashes], np.uint64)
    indices = np.flatnonzero([each is not None for each in phashes])
    hashed = _tally_hashes(hashes, indices, wanted)
    parts = [_by_few(few), _by_crowd(crowd), _by_hash(hashed, crowded)]
    pairs, place = np.unique(np.concatenate([part.pairs for part in parts]), return_inverse=True)
    votes = np.bincount(place, np.concatenate([part.votes for part in parts]), len(pairs))
    shares = np.ones(len(pairs))
    np.minimum.at(shares, place, np.concatenate([part.shares for part in parts]))
    best = np.lexsort((pairs, -votes))
    ones, others = np.divmod(pairs[best], count)
    cut_short = few.cut_short | crowd.cut_short | hashed.cut_short
    return Candidates(ones, others, shares[best], cut_short & wanted)


class VoteCounter:
    """The most likely pairs of each picture, and the votes for them.

    Where more pairs are proposed than are held, the others are dropped. A pair that is proposed
    again begins with no votes then, so this is lossy counting without its bound on the error
    (Manku and Motwani, VLDB 2002).
    """

    def __init__(
        self,
        pictures: int,
        votes_of: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None,
    ) -> None:
        self._votes_of = votes_of
        self._pairs = self._votes = np.zeros(0, np.int64)
        self._waiting: list[NDArray[np.int64]] = []
        self.cut_short = np.zeros(pictures, bool)

    def add(self, proposed: Iterable[NDArray[np.int64]]) -> None:
        """Propose the pairs in some arrays."""
        for pairs in proposed:
            self._waiting.append(pairs)
            if sum(map(len, self._waiting)) >= PAIRS:
                self._count()

    def pairs(self, least: int = 1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs with so many votes or more, sorted, and their votes."""
        self._count()
        enough = self._votes >= least
        return self._pairs[enough], self._votes[enough]

    def _count(self) -> None:
        new, times = np.unique(
            np.concatenate([np.zeros(0, np.int64), *self._waiting]), return_counts=True
        )
        self._waiting = []
        pairs, place = np.unique(np.concatenate([self._pairs, new]), return_inverse=True)
        if self._votes_of is not None:
            votes = self._votes_of(pairs)
        else:
            votes = np.zeros(len(pairs), np.int64)
            np.add.at(votes, place, np.concatenate([self._votes, times]))
        if len(pairs) > max(MOST_PAIRS, 2 * BEST_OF_EACH * len(self.cut_short)):
            mask = self._best(pairs, votes)
            for pictures in np.divmod(pairs[~mask], len(self.cut_short)):
                self.cut_short[pictures] = True
            pairs, votes = pairs[mask], votes[mask]
        self._pairs, self._votes = pairs, votes

    def _best(self, pairs: NDArray[np.int64], votes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which pairs are among the `BEST_OF_EACH` most likely ones of either picture."""
        both = np.concatenate(np.divmod(pairs, len(self.cut_short)))
        mask = np.zeros(len(pairs), bool)
        mask[_first_of_each(both, np.tile(votes, 2), BEST_OF_EACH) % len(pairs)] = True
        return mask


def _first_of_each(
    pictures: NDArray[np.int64], votes: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """Return the places of so many entries of each picture that have most votes."""
    order = np.lexsort((-votes, pictures))
    ordered = pictures[order]
    return order[np.arange(len(order)) - np.searchsorted(ordered, ordered) < most]


@dataclass(frozen=True, slots=True)
class _CandidatePairs:
    """Pairs that one kind of evidence proposes."""

    pairs: NDArray[np.int64]  # As ``smaller * pictures + larger``, each once
    votes: NDArray[np.int64]  # How likely each is
    shares: NDArray[np.float64]  # Part of the features that must agree


def _tally_features(
    read: ReadPrint, wanted: NDArray[np.bool_]
) -> tuple[VoteCounter, VoteCounter, NDArray[np.bool_]]:
    """Count pairs with features that agree in some randomly chosen bits, for several tables.

    First those with features that few pictures share, then those with features of a crowd, and
    which pictures have such.

    The features of 100,000 pictures take 600 MB, so keys are made for some pictures at a time.
    """
    bits = key_bits(len(wanted))
    rng = np.random.default_rng(0)
    few, crowd = VoteCounter(len(wanted)), VoteCounter(len(wanted))
    crowded = np.zeros(len(wanted), bool)
    for _ in range(TABLES):
        chosen = rng.choice(8 * DESCRIPTOR, bits, replace=False)
        for keys, whose in _shared_keys(read, chosen, len(wanted)):
            owners, group, sizes = _grouped(keys, whose)
            rare = sizes <= CROWD
            few.add(_neighbours(owners[rare], group[rare], wanted, CROWD))
            crowd.add(_neighbours(owners[~rare], group[~rare], wanted, LINKS))
            crowded[owners[~rare]] = True
    return few, crowd, crowded


def _by_few(tally: VoteCounter) -> _CandidatePairs:
    pairs, votes = tally.pairs(LEAST_VOTES)
    return _CandidatePairs(pairs, votes, np.zeros(len(pairs)))


def _by_crowd(tally: VoteCounter) -> _CandidatePairs:
    """Return, of each picture, the `LINKS` pairs with later ones that have most votes.

    So features that all pictures have cost few comparisons, however many they are. In a series each
    frame has a link to a later one, and all meet in the last.
    """
    pairs, votes = tally.pairs(LEAST_VOTES)
    best = np.sort(_first_of_each(pairs // len(tally.cut_short), votes, LINKS))
    return _CandidatePairs(pairs[best], votes[best], np.full(len(best), LEAST_SHARE))


def _shared_keys(
    read: ReadPrint, chosen: NDArray[np.int64], count: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the keys of features that occur more than once, and their pictures, in parts."""
    made, whose = [], []
    for start in range(0, count, CHUNK):
        chunk = range(start, min(count, start + CHUNK))
        features = [read(place).descriptors for place in chunk]
        made.append(_keys(features, chosen))
        whose.append(np.repeat(np.array(chunk, np.int32), [*map(len, features)]))
    for part in range(PARTS):
        inside = [np.flatnonzero(each % PARTS == part) for each in made]
        keys = np.concatenate([each[at] for each, at in zip(made, inside, strict=True)])
        owners = np.concatenate([each[at] for each, at in zip(whose, inside, strict=True)])
        ordered = np.sort(keys)
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if len(repeated):
            near = np.searchsorted(repeated, keys).clip(max=len(repeated) - 1)
            again = repeated[near] == keys
            yield keys[again], owners[again].astype(np.int64)


def _keys(features: Sequence[NDArray[np.uint8]], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the chosen bits of all features of some pictures."""
    every = np.concatenate(features)
    # One bit of many features at a time: the processor handles 32 or 64 features at once.
    columns = np.ascontiguousarray(every.T)
    packed = np.zeros((8, len(every)), np.uint8)
    for place, bit in enumerate(chosen.tolist()):
        packed[place >> 3] |= ((columns[bit >> 3] >> (bit & 7)) & 1) << (place & 7)
    return np.ascontiguousarray(packed.T).view(np.int64).ravel()


def key_bits(pictures: int) -> int:
    """Return the number of bits of a feature in a key.

    Corners look alike: with 32 bits one pair of different pictures in twenty shares two keys, with
    40 one in a hundred, with 64 none of 97,000 that were tried. The more pictures there are, the
    fewer such pairs are affordable.
    """
    return round(min(62.0, 40 + 4 * math.log2(max(1.0, pictures / 500))))


def _tally_hashes(
    hashes: NDArray[np.uint64], indices: NDArray[np.int64], wanted: NDArray[np.bool_]
) -> VoteCounter:
    """Return pairs whose perceptual hashes agree in one band, among the pictures seen."""

    def votes_of(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        one, other = np.divmod(pairs, len(hashes))
        bits: NDArray[np.int64] = np.bitwise_count(hashes[one] ^ hashes[other]).astype(np.int64)
        return HASH_BITS + 1 - bits

    tally, shift = VoteCounter(len(hashes), votes_of), 0
    for width in HASH_BANDS:
        keys = (hashes[indices] >> np.uint64(shift)) & np.uint64((1 << width) - 1)
        shift += width
        owners, group, _ = _grouped(keys.astype(np.int64), indices)
        tally.add(_neighbours(owners, group, wanted, HASH_CROWD, hashes))
    return tally


def _by_hash(tally: VoteCounter, crowded: NDArray[np.bool_]) -> _CandidatePairs:
    pairs, votes = tally.pairs()
    one, other = np.divmod(pairs, len(crowded))
    shares = np.where(crowded[one] & crowded[other], LEAST_SHARE, 0.0)
    return _CandidatePairs(pairs, votes, shares)


def _once(
    keys: NDArray[np.int64], owners: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each owner of a key once, sorted by keys and owners."""
    order = np.lexsort((owners, keys))
    keys, owners = keys[order], owners[order]
    first = np.ones(len(keys), bool)
    first[1:] = (keys[1:] != keys[:-1]) | (owners[1:] != owners[:-1])
    return keys[first], owners[first]


def _grouped(
    keys: NDArray[np.int64], owners: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the owners of each key in their order, a number of the key, and how many it has."""
    keys, owners = _once(keys, owners)
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else np.zeros(0, int)
    sizes = np.diff(np.r_[starts, len(keys)])
    return owners, np.repeat(np.arange(len(starts)), sizes), np.repeat(sizes, sizes)


def _neighbours(
    owners: NDArray[np.int64],
    group: NDArray[np.int64],
    wanted: NDArray[np.bool_],
    most: int,
    hashes: NDArray[np.uint64] | None = None,
) -> Iterator[NDArray[np.int64]]:
    """Yield pairs of owners of one key, as ``smaller * pictures + larger``.

    At most `most` - 1 owners of the key stand between the two. Pairs without a wanted picture are
    skipped, and pairs whose hashes differ in more than `HASH_BITS`.
    """
    for distance in range(1, most + 1):
        same = group[distance:] == group[:-distance]
        if not same.any():
            return
        low, high = owners[:-distance][same], owners[distance:][same]
        new = wanted[low] | wanted[high]
        if hashes is not None:
            new &= np.bitwise_count(hashes[low] ^ hashes[high]) <= HASH_BITS
        yield low[new] * len(wanted) + high[new]

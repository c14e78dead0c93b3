"""Which pictures show the same place: hashing finds candidate pairs, and each pair is checked."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.likeness import DESCRIPTOR, Fingerprint, Sketch, parse, sketch

# Two features are the same if at most this many of their 256 bits differ.
LIKE_BITS = 52
# This many features must agree on one shift, rotation and scale. Between pictures of different
# places up to 6 agree by chance.
LEAST_FEATURES = 9
# They must span at least this part of one picture: a label that was not masked spans less.
LEAST_SPAN = 0.03
REPROJECTION = 4.0  # pixels of the reduced picture
SCALES = (1 / 8, 8.0)
LEAST_CORRELATION = 0.95
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
# After so many comparisons in vain a picture is compared only with others that have had fewer; the
# most likely ones come first. A drawing with noise proposes every pair of pictures that have it.
MOST_IN_VAIN = 32


@dataclass(frozen=True, slots=True)
class Likeness:
    """Two pictures that show the same place, and the reason to think so.

    Parameters
    ----------
    one, other : str
        Names, in alphabetical order.
    why : str
    """

    one: str
    other: str
    why: str


@dataclass(frozen=True, slots=True)
class Search:
    """What a search for near-duplicates has found.

    Parameters
    ----------
    pairs : list of Likeness
        Pairs of pictures that show the same place, sorted by names.
    cut_short : list of str
        Names of pictures that were not compared with all that may show their place: comparisons
        with the `MOST_IN_VAIN` most likely ones, or more, had found nothing.
    """

    pairs: list[Likeness]
    cut_short: list[str]


def find_near_duplicates(
    fingerprints: Mapping[str, bytes],
    new: Collection[str] | None = None,
    known: Iterable[tuple[str, str]] = (),
) -> Search:
    """Return pairs of pictures whose fields of view overlap.

    The work grows with the number of pictures, not with the number of all pairs: a pair is
    compared only if a wanted picture of it has been compared in vain with fewer than
    `MOST_IN_VAIN` others. In a series of one place every two pictures are alike. Only so many of
    these pairs are returned that each picture is linked to `LINKS` others directly, and to all
    through others.

    Parameters
    ----------
    fingerprints : mapping of str to bytes
        Fingerprints by name; see `data_prep.likeness.fingerprint`.
    new : collection of str, optional
        Names; only pairs with one of these are looked for. Default: all.
    known : iterable of (str, str), optional
        Pairs that were found before; pictures that they join need no further links.

    Returns
    -------
    Search
    """
    names = sorted(fingerprints)
    if not names or (new is not None and not new):
        return Search([], [])
    sketches = _Sketches(fingerprints, names)
    wanted = np.array([new is None or name in new for name in names], bool)
    links = _Links(len(names))
    places = {name: place for place, name in enumerate(names)}
    for one, other in known:
        if one in places and other in places:
            links.add(places[one], places[other])
    found, cut_short = [], set[int]()
    in_vain = np.zeros(len(names), np.int64)
    for (i, j), share in _candidates(sketches, wanted):
        if not links.need(i, j):
            continue
        seeking = [place for place in (i, j) if wanted[place]]
        if in_vain[seeking].min() >= MOST_IN_VAIN:
            cut_short.update(seeking)
            continue
        here, there = (parse(fingerprints[names[place]]) for place in (i, j))
        why = compare(here, there, share)
        if why is None:
            in_vain[[i, j]] += 1
        else:
            links.add(i, j)
            found.append(Likeness(names[i], names[j], why))
    found.sort(key=lambda each: (each.one, each.other))
    return Search(found, [names[place] for place in sorted(cut_short)])


class _Sketches(Sequence[Sketch]):
    """Pictures ready for the search for candidates; each is read when it is asked for.

    Parameters
    ----------
    fingerprints : mapping of str to bytes
    names : sequence of str
    """

    def __init__(self, fingerprints: Mapping[str, bytes], names: Sequence[str]) -> None:
        self._fingerprints, self._names = fingerprints, names

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, place: int) -> Sketch: ...
    @overload
    def __getitem__(self, place: slice) -> _Sketches: ...
    def __getitem__(self, place: int | slice) -> Sketch | _Sketches:
        if isinstance(place, slice):
            return _Sketches(self._fingerprints, self._names[place])
        return sketch(self._fingerprints[self._names[place]])


class _Links:
    """Which pictures are linked, directly and through others.

    Parameters
    ----------
    count : int
        Number of pictures.
    """

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))
        self._degrees = [0] * count

    def need(self, one: int, other: int) -> bool:
        """Tell whether a link between two pictures is still needed."""
        few = min(self._degrees[one], self._degrees[other]) < LINKS
        return few or self._root(one) != self._root(other)

    def add(self, one: int, other: int) -> None:
        """Link two pictures."""
        self._parents[self._root(one)] = self._root(other)
        self._degrees[one] += 1
        self._degrees[other] += 1

    def _root(self, place: int) -> int:
        while self._parents[place] != place:
            self._parents[place] = self._parents[self._parents[place]]
            place = self._parents[place]
        return place


def compare(one: Fingerprint, other: Fingerprint, share: float = 0.0) -> str | None:
    """Return why two pictures show the same place, None if they do not.

    Parameters
    ----------
    one, other : Fingerprint
    share : float, default 0
        Part of the features of the picture with fewer of them that must agree at least.
    """
    return _same_field(one, other, share) or _same_thumbnail(one, other)


def _same_field(one: Fingerprint, other: Fingerprint, share: float) -> str | None:
    fewest = min(len(one.points), len(other.points))
    least = max(LEAST_FEATURES, share * fewest)
    if fewest < LEAST_FEATURES:
        return None
    matcher = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True)
    near = [
        match
        for match in matcher.match(one.descriptors, other.descriptors)
        if match.distance <= LIKE_BITS
    ]
    if len(near) < least:
        return None
    here = one.points[[match.queryIdx for match in near]]
    there = other.points[[match.trainIdx for match in near]]
    # A microscope shifts, rotates and magnifies; it does not shear.
    motion, agree = cv2.estimateAffinePartial2D(
        here, there, method=cv2.RANSAC, ransacReprojThreshold=REPROJECTION, maxIters=1000
    )
    if motion is None:
        return None
    inside = agree.ravel().astype(bool)
    scale = float(np.hypot(motion[0, 0], motion[1, 0]))
    if inside.sum() < least or not SCALES[0] <= scale <= SCALES[1]:
        return None
    spans = [_span(here[inside], one), _span(there[inside], other)]
    if max(spans) < LEAST_SPAN:
        return None
    turn = round(float(np.degrees(np.arctan2(motion[1, 0], motion[0, 0]))))
    # In source pixels, as users see them.
    scale *= one.reduction / other.reduction
    return f"{inside.sum()} features agree (scale {scale:.2f}, turned by {turn} degrees)"


def _span(points: NDArray[np.float32], picture: Fingerprint) -> float:
    return float(cv2.contourArea(cv2.convexHull(points))) / picture.area


def _same_thumbnail(one: Fingerprint, other: Fingerprint) -> str | None:
    if one.thumbnail is None or other.thumbnail is None:
        return None
    if (one.phash ^ other.phash).bit_count() > HASH_BITS:
        return None
    correlation = float((one.thumbnail * other.thumbnail).mean())
    if correlation < LEAST_CORRELATION:
        return None
    return f"the thumbnails are alike (correlation {correlation:.3f})"


def _candidates(
    pictures: Sequence[Sketch], wanted: NDArray[np.bool_]
) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield pairs that may show the same place, the most likely ones first.

    With each pair comes the part of their features that must agree: `LEAST_SHARE` if nothing else
    than features of a crowd proposes it, or the thumbnails of two pictures that have such features.
    """
    few, crowd, crowded = _pairs_by_features(pictures, wanted)
    parts = [few, crowd, _pairs_by_hash(pictures, wanted, crowded)]
    pairs, place = np.unique(np.concatenate([part.pairs for part in parts]), return_inverse=True)
    votes = np.bincount(place, np.concatenate([part.votes for part in parts]), len(pairs))
    shares = np.ones(len(pairs))
    np.minimum.at(shares, place, np.concatenate([part.shares for part in parts]))
    for best in np.lexsort((pairs, -votes)):
        yield divmod(int(pairs[best]), len(pictures)), float(shares[best])


@dataclass(frozen=True, slots=True)
class _Proposed:
    """Pairs that one kind of evidence proposes.

    Parameters
    ----------
    pairs : array of int64
        As ``smaller * pictures + larger``, each once.
    votes : array of int64
        How likely each is.
    shares : array of float64
        Part of the features that must agree.
    """

    pairs: NDArray[np.int64]
    votes: NDArray[np.int64]
    shares: NDArray[np.float64]


def _pairs_by_features(
    pictures: Sequence[Sketch], wanted: NDArray[np.bool_]
) -> tuple[_Proposed, _Proposed, NDArray[np.bool_]]:
    """Return pairs with features that agree in some randomly chosen bits, for several tables.

    First those with features that few pictures share, then those with features of a crowd, and
    which pictures have such.

    The features of 100,000 pictures take 600 MB, so keys are made for some pictures at a time, and
    only the few keys that occur more than once are kept.
    """
    bits = key_bits(len(pictures))
    rng = np.random.default_rng(0)
    votes: list[NDArray[np.int64]] = []
    crowd: list[NDArray[np.int64]] = []
    crowded = np.zeros(len(pictures), bool)
    for _ in range(TABLES):
        chosen = rng.choice(8 * DESCRIPTOR, bits, replace=False)
        owners, group, sizes = _grouped(*_shared_keys(pictures, chosen, wanted))
        few = sizes <= CROWD
        votes.append(_neighbours(owners[few], group[few], wanted, CROWD))
        crowd.append(_neighbours(owners[~few], group[~few], wanted, LINKS))
        crowded[owners[~few]] = True
    pairs, times = _several_times(np.concatenate(votes))
    likely, most = _best(*_several_times(np.concatenate(crowd)), len(pictures))
    by_few = _Proposed(pairs, times, np.zeros(len(pairs)))
    return by_few, _Proposed(likely, most, np.full(len(likely), LEAST_SHARE)), crowded


def _several_times(votes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs with `LEAST_VOTES` or more, and their numbers of votes."""
    pairs, times = np.unique(votes, return_counts=True)
    return pairs[times >= LEAST_VOTES], times[times >= LEAST_VOTES]


def _best(
    pairs: NDArray[np.int64], votes: NDArray[np.int64], pictures: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, of each picture, the `LINKS` pairs with later ones that have most votes.

    So features that all pictures have cost few comparisons, however many they are. In a series each
    frame has a link to a later one, and all meet in the last.
    """
    order = np.lexsort((pairs, -votes, pairs // pictures))
    pairs, votes = pairs[order], votes[order]
    first = np.searchsorted(pairs // pictures, pairs // pictures)
    best = np.arange(len(pairs)) - first < LINKS
    return pairs[best], votes[best]


def _shared_keys(
    pictures: Sequence[Sketch], chosen: NDArray[np.int64], wanted: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys of features that may occur more than once, and their pictures.

    A hash of 32 bits excludes almost all keys that occur once.
    """
    chunks = [range(i, min(i + CHUNK, len(pictures))) for i in range(0, len(pictures), CHUNK)]
    hashes, counts = [], []
    for chunk in chunks:
        features = [pictures[place].descriptors for place in chunk]
        hashes.append(_hashed(_keys(features, chosen)))
        counts.append([*map(len, features)])
    shared = _repeated(np.concatenate(hashes))
    if not wanted.all():
        new = [
            each[np.repeat(wanted[chunk], count)]
            for chunk, each, count in zip(chunks, hashes, counts, strict=True)
        ]
        shared = np.intersect1d(shared, np.concatenate(new))
    keys, owners = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for chunk, each, count in zip(chunks, hashes, counts, strict=True):
        places = np.flatnonzero(_among(each, shared))
        if len(places):
            features = [pictures[place].descriptors for place in chunk]
            keys.append(_keys(features, chosen)[places])
            owners.append(np.repeat(np.array(chunk), count)[places])
    return np.concatenate(keys), np.concatenate(owners)


def _keys(features: Sequence[NDArray[np.uint8]], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the chosen bits of all features of some pictures."""
    every = np.concatenate(features)
    # One bit of many features at a time: the processor handles 32 or 64 features at once.
    columns = np.ascontiguousarray(every.T)
    packed = np.zeros((8, len(every)), np.uint8)
    for place, bit in enumerate(chosen.tolist()):
        packed[place >> 3] |= ((columns[bit >> 3] >> (bit & 7)) & 1) << (place & 7)
    return np.ascontiguousarray(packed.T).view(np.int64).ravel()


def _hashed(keys: NDArray[np.int64]) -> NDArray[np.uint32]:
    # Multiplication by the golden ratio spreads all bits into the upper half (Knuth, TAOCP 6.4).
    spread = keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hashed: NDArray[np.uint32] = (spread >> np.uint64(32)).astype(np.uint32)
    return hashed


def _repeated(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the values that occur more than once, sorted."""
    values.sort()
    return np.unique(values[1:][values[1:] == values[:-1]])


def _among(values: NDArray[np.uint32], few: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Tell which values are among a few sorted ones."""
    # The upper bits alone exclude most values, with a table that stays in the cache.
    known = np.zeros(1 << 22, bool)
    known[few >> 10] = True
    among: NDArray[np.bool_] = known[values >> 10]
    places = np.flatnonzero(among)
    near = np.searchsorted(few, values[places]).clip(max=max(0, len(few) - 1))
    among[places] = few[near] == values[places] if len(few) else False
    return among


def key_bits(pictures: int) -> int:
    """Return the number of bits of a feature in a key.

    Corners look alike: with 32 bits one pair of different pictures in twenty shares two keys, with
    40 one in a hundred, with 64 none of 97,000 that were tried. The more pictures there are, the
    fewer such pairs are affordable.
    """
    return round(min(62.0, 40 + 4 * math.log2(max(1.0, pictures / 500))))


def _pairs_by_hash(
    pictures: Sequence[Sketch], wanted: NDArray[np.bool_], crowded: NDArray[np.bool_]
) -> _Proposed:
    """Return pairs whose perceptual hashes agree in one band."""
    told = [each.phash for each in pictures]
    seen = np.array([i for i, each in enumerate(told) if each is not None], np.int64)
    hashes = np.array([each or 0 for each in told], np.uint64)
    found, shift = [], 0
    for width in HASH_BANDS:
        keys = (hashes[seen] >> np.uint64(shift)) & np.uint64((1 << width) - 1)
        shift += width
        owners, group, _ = _grouped(keys.astype(np.int64), seen)
        found.append(_neighbours(owners, group, wanted, HASH_CROWD, hashes))
    pairs = np.unique(np.concatenate(found))
    one, other = np.divmod(pairs, len(pictures))
    bits = np.bitwise_count(hashes[one] ^ hashes[other]).astype(np.int64)
    shares = np.where(crowded[one] & crowded[other], LEAST_SHARE, 0.0)
    return _Proposed(pairs, HASH_BITS + 1 - bits, shares)


def _grouped(
    keys: NDArray[np.int64], owners: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the owners of each key in their order, a number of the key, and how many it has."""
    order = np.lexsort((owners, keys))
    keys, owners = keys[order], owners[order]
    # Several features of one picture under one key count once.
    first = np.ones(len(keys), bool)
    first[1:] = (keys[1:] != keys[:-1]) | (owners[1:] != owners[:-1])
    keys, owners = keys[first], owners[first]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else np.zeros(0, int)
    sizes = np.diff(np.r_[starts, len(keys)])
    return owners, np.repeat(np.arange(len(starts)), sizes), np.repeat(sizes, sizes)


def _neighbours(
    owners: NDArray[np.int64],
    group: NDArray[np.int64],
    wanted: NDArray[np.bool_],
    most: int,
    hashes: NDArray[np.uint64] | None = None,
) -> NDArray[np.int64]:
    """Return pairs of owners of one key, as ``smaller * pictures + larger``.

    At most `most` - 1 owners of the key stand between the two. Pairs without a wanted picture are
    skipped, and pairs whose hashes differ in more than `HASH_BITS`.
    """
    found: list[NDArray[np.int64]] = []
    for distance in range(1, most + 1):
        same = group[distance:] == group[:-distance]
        if not same.any():
            break
        low, high = owners[:-distance][same], owners[distance:][same]
        new = wanted[low] | wanted[high]
        if hashes is not None:
            new &= np.bitwise_count(hashes[low] ^ hashes[high]) <= HASH_BITS
        found.append(low[new] * len(wanted) + high[new])
    return np.concatenate(found) if found else np.zeros(0, np.int64)

"""Which pictures show the same place: candidates by hashing, not by pairs, then a check of each."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.likeness import DESCRIPTOR, Fingerprint, parse

# Two features are the same if at most so many of their 256 bits differ.
LIKE_BITS = 52
# So many features must agree on one shift, turn and scale. Of pictures of different places up to
# 6 do by chance.
LEAST_FEATURES = 9
# They span at least this part of one picture: a label that was not masked spans less.
LEAST_SPAN = 0.03
REPROJECTION = 4.0  # pixels of the reduced picture
SCALES = (1 / 8, 8.0)
LEAST_CORRELATION = 0.95
# Of two thumbnails at most so many bits of the hash differ; pictures of different places differ in
# 20 or more. Five bands find all pairs that differ in 4 bits, and most of the others.
HASH_BITS = 8
HASH_BANDS = (13, 13, 13, 13, 12)
# Tables of the index over features, and features that must fall together.
TABLES = 8
LEAST_VOTES = 2
# A feature that so many pictures have says nothing about two of them.
CROWD = 32


@dataclass(frozen=True, slots=True)
class Likeness:
    """Two pictures that show the same, and why we think so.

    Parameters
    ----------
    one, other : str
        Names, in order.
    why : str
    """

    one: str
    other: str
    why: str


def find_near_duplicates(
    fingerprints: Mapping[str, bytes], new: Collection[str] | None = None
) -> list[Likeness]:
    """Return the pairs of pictures whose fields of view overlap.

    The work grows with the number of pictures and of pairs found, not with all pairs.

    Parameters
    ----------
    fingerprints : mapping of str to bytes
        By name; see `data_prep.likeness.fingerprint`.
    new : collection of str, optional
        Only pairs with one of these. Default: all.

    Returns
    -------
    list of Likeness
        Sorted by names.
    """
    names = sorted(fingerprints)
    if new is not None and not new:
        return []
    pictures = [parse(fingerprints[name]) for name in names]
    wanted = np.array([new is None or name in new for name in names], bool)
    pairs = {*_pairs_by_features(pictures, wanted), *_pairs_by_hash(pictures, wanted)}
    found = []
    for i, j in sorted(pairs):
        why = compare(pictures[i], pictures[j])
        if why is not None:
            found.append(Likeness(names[i], names[j], why))
    return found


def compare(one: Fingerprint, other: Fingerprint) -> str | None:
    """Return why two pictures show the same place, None if they do not."""
    return _same_field(one, other) or _same_thumbnail(one, other)


def _same_field(one: Fingerprint, other: Fingerprint) -> str | None:
    if min(len(one.points), len(other.points)) < LEAST_FEATURES:
        return None
    matcher = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True)
    near = [
        match
        for match in matcher.match(one.descriptors, other.descriptors)
        if match.distance <= LIKE_BITS
    ]
    if len(near) < LEAST_FEATURES:
        return None
    here = one.points[[match.queryIdx for match in near]]
    there = other.points[[match.trainIdx for match in near]]
    # A microscope shifts, turns and magnifies; it does not shear.
    motion, agree = cv2.estimateAffinePartial2D(
        here, there, method=cv2.RANSAC, ransacReprojThreshold=REPROJECTION, maxIters=1000
    )
    if motion is None:
        return None
    inside = agree.ravel().astype(bool)
    scale = float(np.hypot(motion[0, 0], motion[1, 0]))
    if inside.sum() < LEAST_FEATURES or not SCALES[0] <= scale <= SCALES[1]:
        return None
    spans = [_span(here[inside], one), _span(there[inside], other)]
    if max(spans) < LEAST_SPAN:
        return None
    turn = round(float(np.degrees(np.arctan2(motion[1, 0], motion[0, 0]))))
    # In source pixels, as the user sees them.
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


def _pairs_by_features(
    pictures: Sequence[Fingerprint], wanted: NDArray[np.bool_]
) -> Iterator[tuple[int, int]]:
    """Yield pairs with features that agree in some bits, chosen at random, of several tables."""
    counts = [len(picture.points) for picture in pictures]
    owners = np.repeat(np.arange(len(pictures), dtype=np.int64), counts)
    if not len(owners):
        return
    every = np.concatenate([picture.descriptors for picture in pictures])
    bits = key_bits(len(pictures))
    rng = np.random.default_rng(0)
    votes: list[NDArray[np.int64]] = []
    for _ in range(TABLES):
        chosen = rng.choice(8 * DESCRIPTOR, bits, replace=False)
        keys = np.zeros(len(owners), np.int64)
        for bit in chosen:
            keys = (keys << 1) | ((every[:, bit >> 3] >> (bit & 7)) & 1)
        votes.append(_together(keys, owners, wanted))
    pairs, times = np.unique(np.concatenate(votes), return_counts=True)
    for pair in pairs[times >= LEAST_VOTES].tolist():
        yield divmod(pair, len(pictures))


def key_bits(pictures: int) -> int:
    """Return how many bits of a feature make a key.

    Corners look alike: with 32 bits one pair of different pictures in twenty falls together twice,
    with 40 one in a hundred, with 64 none of 97,000 that were tried. The more pictures there are,
    the fewer such pairs can be afforded.
    """
    return round(min(62.0, 40 + 4 * math.log2(max(1.0, pictures / 500))))


def _pairs_by_hash(
    pictures: Sequence[Fingerprint], wanted: NDArray[np.bool_]
) -> Iterator[tuple[int, int]]:
    """Yield pairs whose perceptual hashes agree in one band."""
    seen = np.array([i for i, each in enumerate(pictures) if each.thumbnail is not None], np.int64)
    hashes = np.array([pictures[i].phash for i in seen], np.uint64)
    shift = 0
    for width in HASH_BANDS:
        keys = (hashes >> np.uint64(shift)) & np.uint64((1 << width) - 1)
        shift += width
        pairs = _together(keys.astype(np.int64), seen, wanted, crowd=len(seen))
        for pair in np.unique(pairs).tolist():
            i, j = divmod(pair, len(pictures))
            if (pictures[i].phash ^ pictures[j].phash).bit_count() <= HASH_BITS:
                yield i, j


def _together(
    keys: NDArray[np.int64],
    owners: NDArray[np.int64],
    wanted: NDArray[np.bool_],
    crowd: int = CROWD,
) -> NDArray[np.int64]:
    """Return pairs of different owners with equal keys, as ``smaller * pictures + larger``.

    Keys that more than `crowd` have are skipped. Pairs without a wanted picture are, too.
    """
    order = np.lexsort((owners, keys))
    keys, owners = keys[order], owners[order]
    # Several features of one picture under one key count once.
    first = np.ones(len(keys), bool)
    first[1:] = (keys[1:] != keys[:-1]) | (owners[1:] != owners[:-1])
    keys, owners = keys[first], owners[first]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else np.zeros(0, int)
    sizes = np.diff(np.r_[starts, len(keys)])
    crowded = np.repeat(sizes > crowd, sizes)
    group = np.repeat(np.arange(len(starts)), sizes)
    keep = ~crowded
    owners, group = owners[keep], group[keep]
    found: list[NDArray[np.int64]] = []
    # Neighbours at distance 1, 2, ... of the same key.
    for distance in range(1, min(crowd, int(sizes.max(initial=0))) + 1):
        same = group[distance:] == group[:-distance]
        if not same.any():
            break
        low, high = owners[:-distance][same], owners[distance:][same]
        new = wanted[low] | wanted[high]
        found.append(low[new] * len(wanted) + high[new])
    return np.concatenate(found) if found else np.zeros(0, np.int64)

"""Which pictures show the same place: candidate pairs are compared, the most likely ones first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.splits.candidate_search import HASH_BITS, LINKS, find_candidates
from data_prep.splits.fingerprint import Fingerprint, parse
from distkeras_grid.dataset.manifest import DuplicatePair
from distkeras_grid.disjoint_set import DisjointSet

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
# After so many comparisons in vain a picture is compared only with others that have had fewer; the
# most likely ones come first. A drawing with noise proposes every pair of pictures that have it.
MOST_IN_VAIN = 32


@dataclass(frozen=True, slots=True)
class DuplicateSearch:
    """What a search for near-duplicates has found."""

    pairs: list[DuplicatePair]  # Pairs of pictures that show the same place, sorted by names
    # Names of pictures that were not compared with all that may show their place: comparisons with
    # the `MOST_IN_VAIN` most likely ones, or more, had found nothing; or more pairs were proposed
    # than are held, and the picture has fewer than `LINKS` links. Where pairs were not held, two
    # series may stay apart although each is linked within itself.
    cut_short: list[str]


def find_near_duplicates(
    fingerprints: Mapping[str, bytes],
    new: Collection[str] | None = None,
    known: Iterable[tuple[str, str]] = (),
    names: Mapping[str, str] | None = None,
) -> DuplicateSearch:
    """Return pairs of pictures whose fields of view overlap.

    The work grows with the number of pictures, not with the number of all pairs: a pair is
    compared only if a wanted picture of it has been compared in vain with fewer than
    `MOST_IN_VAIN` others. In a series of one place every two pictures are alike. Only so many of
    these pairs are returned that each picture is linked to `LINKS` others directly, and to all
    through others.

    `new`: keys of fingerprints; only pairs with one of these are looked for. Default: all.
    `known`: names of pictures that show the same place.
    `names`: keys of fingerprints by the names of the pictures; pictures without a fingerprint are
    not compared. Default: the keys are the names.
    """
    names = {key: key for key in fingerprints} if names is None else names
    named = sorted((name, key) for name, key in names.items() if fingerprints.get(key))
    if not named or (new is not None and not new):
        return DuplicateSearch([], [])
    among = None if new is None else set(new)
    wanted = np.array([among is None or key in among for _, key in named], bool)
    links = _PairSet(len(named))
    places = {name: place for place, (name, _) in enumerate(named)}

    def read(place: int) -> Fingerprint:
        return parse(fingerprints[named[place][1]])

    for one, other in known:
        if one in places and other in places:
            links.add(places[one], places[other])
    pairs, cut_short = [], set[int]()
    in_vain = np.zeros(len(named), np.int64)
    candidates = find_candidates(read, wanted)
    for i, j, share in candidates:
        if not links.need(i, j):
            continue
        seeking = [place for place in (i, j) if wanted[place]]
        if in_vain[seeking].min() >= MOST_IN_VAIN:
            cut_short.update(seeking)
            continue
        why = compare(read(i), read(j), share)
        if why is None:
            in_vain[[i, j]] += 1
        else:
            links.add(i, j)
            pairs.append(DuplicatePair(named[i][0], named[j][0], why))
    cut_short.update(i for i in np.flatnonzero(candidates.cut_short).tolist() if links.few(i))
    pairs.sort(key=lambda each: (each.one, each.other))
    return DuplicateSearch(pairs, [named[place][0] for place in sorted(cut_short)])


class _PairSet:
    """Which pictures are linked, directly and through others."""

    def __init__(self, count: int) -> None:
        self._units = DisjointSet()
        self._degrees = [0] * count
        self._linked: set[int] = set()

    def need(self, one: int, other: int) -> bool:
        """Tell whether a link between two pictures is still needed."""
        if self._number(one, other) in self._linked:
            return False
        return self.few(one) or self.few(other) or self._units.root(one) != self._units.root(other)

    def few(self, place: int) -> bool:
        """Tell whether a picture is linked to fewer than `LINKS` others."""
        return self._degrees[place] < LINKS

    def add(self, one: int, other: int) -> None:
        """Link two pictures; a link that is there is not counted again."""
        if self._number(one, other) in self._linked:
            return
        self._linked.add(self._number(one, other))
        self._units.join(one, other)
        self._degrees[one] += 1
        self._degrees[other] += 1

    def _number(self, one: int, other: int) -> int:
        return min(one, other) * len(self._degrees) + max(one, other)


def compare(one: Fingerprint, other: Fingerprint, share: float = 0.0) -> str | None:
    """Return why two pictures show the same place, None if they do not.

    `share`: part of the features of the picture with fewer of them that must agree at least.
    """
    return _same_field(one, other, share) or _same_thumbnail(one, other)


def _same_field(one: Fingerprint, other: Fingerprint, share: float) -> str | None:
    fewest = min(len(one.descriptors), len(other.descriptors))
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
    here, there = one.thumbnail, other.thumbnail
    if here is None or there is None:
        return None
    if ((one.phash or 0) ^ (other.phash or 0)).bit_count() > HASH_BITS:
        return None
    correlation = float((here * there).mean())
    if correlation < LEAST_CORRELATION:
        return None
    return f"the thumbnails are alike (correlation {correlation:.3f})"

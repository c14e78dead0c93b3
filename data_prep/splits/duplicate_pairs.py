"""Pairs of near-duplicates in a data set: which join a unit, and what is said of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from distkeras_grid.dataset.manifest import DuplicatePair

# At most this many pairs are printed; the manifest has all.
MAX_LISTED = 20
# So many names of images that were not compared with all.
MAX_NAMED = 5


def must_link_pairs(
    pairs: Iterable[DuplicatePair], current: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the pairs that must share a split, without those that stood in two splits before."""
    return [
        (pair.one, pair.other)
        for pair in pairs
        if current.get(pair.one) == current.get(pair.other) or {pair.one, pair.other} - set(current)
    ]


def remap_pairs(
    pairs: Iterable[DuplicatePair], contents: Mapping[str, str | None], names: Mapping[str, str]
) -> list[DuplicatePair]:
    """Return the pairs whose pictures are still there, with the paths that these have now.

    `contents`: digests of the pixels by path, when the pairs were found.
    `names`: A path of each picture that is there, by the digest of its pixels.
    """
    return [
        replace(pair, one=min(one, other), other=max(one, other))
        for pair in pairs
        if (one := names.get(contents.get(pair.one) or ""))
        and (other := names.get(contents.get(pair.other) or ""))
    ]


def to_json(pairs: Iterable[DuplicatePair]) -> list[dict[str, str]]:
    """Return pairs as JSON types."""
    return [{"one": pair.one, "other": pair.other, "why": pair.why} for pair in pairs]


def describe(pairs: Collection[DuplicatePair], splits: Mapping[str, str]) -> list[str]:
    """Return pairs as lines for a person."""
    lines = []
    for pair in list(pairs)[:MAX_LISTED]:
        places = [splits.get(name) for name in (pair.one, pair.other)]
        apart = None not in places and places[0] != places[1]
        leak = f"; they stand in {places[0]} and {places[1]}" if apart else ""
        lines.append(f"  alike: {pair.one} and {pair.other}: {pair.why}{leak}")
    if len(pairs) > MAX_LISTED:
        lines.append(f"  alike: {len(pairs) - MAX_LISTED:,} more pairs, listed in the manifest")
    return lines


def describe_cut_short(names: Collection[str]) -> list[str]:
    """Return a line, or none, about pictures that were not compared with all that may be alike."""
    if not names:
        return []
    more = ", ..." if len(names) > MAX_NAMED else ""
    return [
        f"  {len(names):,} images were not compared with all that may show their place, because "
        f"too many may: {', '.join([*names][:MAX_NAMED])}{more}. A label that is drawn into many "
        "images causes this, or images that look alike. Groups that are known (--group) tell such "
        "pairs."
    ]

"""Which source belongs to which split: decided once, before tiling, so that nothing leaks.

Tiles of one image overlap: a random split of tiles would put nearly the same pixels into training
and test. So whole sources are split, those with the same pixels as one, and whole groups where
there are groups (such as the images of one specimen).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from data_prep.splits import stratify
from distkeras_grid.disjoint_set import DisjointSet
from distkeras_grid.errors import (
    ConfigurationError,
    EmptySplitError,
    LabelError,
    SplitLeakError,
)

SPLITS = ("train", "validation", "test")
LEAK_HINT = "Undo what joins them, or tile anew (--overwrite)."
CHOOSE_AGAIN = "Give all of them one split in the table, or undo what joins them."
RENAME = "Give a file that shows something else now another name, or undo what joins them."


@dataclass(frozen=True, slots=True)
class SplitSource:
    """One image file."""

    path: str  # Path below the input folder
    sha256: str  # Digest of its bytes
    label: str
    group: str | None = None
    split: str | None = None  # Split of the source, where somebody has chosen it
    # Digest of its pixels; files with other bytes can have the same
    pixel_sha256: str | None = None
    weight: int = 1  # Number of its tiles; 0 if it is only remembered

    @property
    def content(self) -> str:
        """Digest that identifies the picture: of its pixels, else of the bytes of its file."""
        return self.pixel_sha256 or self.sha256


def parse_fractions(text: str) -> dict[str, float]:
    """Read the shares of the splits.

    Examples
    --------
    >>> parse_fractions("0.8:0.2")
    {'train': 0.8, 'test': 0.2}
    """
    names = {1: ("train",), 2: ("train", "test"), 3: SPLITS}
    try:
        shares = [float(part) for part in text.split(":")]
    except ValueError:
        shares = []
    usable = all(math.isfinite(share) and share >= 0 for share in shares)
    if len(shares) not in names or not usable or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ConfigurationError(
            "split must be one to three shares that add up to 1, such as 0.8:0.1:0.1 (train, "
            f"validation, test) or 0.8:0.2 (train, test). Received: {text!r}."
        )
    return dict(zip(names[len(shares)], shares, strict=True))


def assign_splits(
    sources: Sequence[SplitSource],
    fractions: Mapping[str, float],
    seed: int,
    current: Mapping[str, str] | None = None,
    links: Iterable[tuple[str, str]] = (),
) -> dict[str, str]:
    """Assign each source to a split.

    Sources of one group, with the same bytes or pixels, or linked, go together. The shares count
    tiles, within each class. The split of a new source depends on its pixels and on the seed, not
    on its position, name or file format; one that has a split keeps it.

    `sources`: sources; if one has a chosen split, all must have one.
    `fractions`: share of each split. `current`: splits that sources have, by path.
    `links`: pairs of paths that go together, such as near-duplicates.
    """
    _check_labels(sources)
    groups = connected_groups(sources, links)
    if any(source.split for source in sources):
        return _chosen(sources, groups)
    tiled = {source.path for source in canonical_copies(sources).values()}
    units = [
        stratify.SplitGroup(
            rank_of(unit, seed),
            # Only one of several copies is tiled.
            weights_of(source for source in unit if source.path in tiled),
            _current_split(unit, current or {}),
        )
        for unit in groups
    ]
    splits = stratify.assign_groups(units, fractions)
    return {
        source.path: split for unit, split in zip(groups, splits, strict=True) for source in unit
    }


def check_cells(
    sources: Sequence[SplitSource],
    assigned: Mapping[str, str],
    fractions: Mapping[str, float],
    links: Iterable[tuple[str, str]] = (),
) -> None:
    """Refuse a division in which a split has no tile of a class."""
    cells = empty_cells(sources, assigned, fractions, links)
    if cells:
        shares = ":".join(f"{share:g}" for share in fractions.values())
        raise EmptySplitError.of(cells, f"shares {shares}")


def empty_cells(
    sources: Sequence[SplitSource],
    assigned: Mapping[str, str],
    fractions: Mapping[str, float],
    links: Iterable[tuple[str, str]] = (),
    labels: Iterable[str] | None = None,
) -> list[tuple[str, str, int]]:
    """Return class, split and units of the class, where a split with a share has none of it."""
    filled = {(source.label, assigned[source.path]) for source in sources if source.weight}
    missing = [
        (label, split)
        for label in sorted({label for label, _ in filled} if labels is None else labels)
        for split, share in fractions.items()
        if share > 0 and (label, split) not in filled
    ]
    if not missing:
        return []
    units = Counter(
        label
        for unit in connected_groups(sources, links)
        for label in {source.label for source in unit if source.weight}
    )
    return [(label, split, units[label]) for label, split in missing]


def split_conflicts(
    sources: Sequence[SplitSource],
    current: Mapping[str, str],
    links: Iterable[tuple[str, str]] = (),
    chosen: Mapping[str, str] | None = None,
    former: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return why new sources cannot come in: they would join sources of different splits.

    `chosen`: splits of new sources in a table, by path. `former`: splits of the pictures that
    stood at the paths of new sources.
    """
    pairs = list(links)
    old = [source for source in sources if source.path in current]
    paths = {source.path for source in old}
    for unit in connected_groups(old, _within(pairs, paths)):
        _current_split(unit, current)
    standing = {**(chosen or {}), **(former or {}), **current}
    partners: dict[str, list[str]] = {}
    for one, other in pairs:
        partners.setdefault(one, []).append(other)
        partners.setdefault(other, []).append(one)
    reasons: dict[str, str] = {}
    for unit in connected_groups(sources, pairs):
        if len({standing[source.path] for source in unit if source.path in standing}) > 1:
            reasons |= _conflicts_by(unit, current, standing, partners, former or {})
    return reasons


def _conflicts_by(
    unit: Sequence[SplitSource],
    current: Mapping[str, str],
    standing: Mapping[str, str],
    partners: Mapping[str, Sequence[str]],
    former: Mapping[str, str],
) -> dict[str, str]:
    """Return which new sources tear a unit, taking one source after another."""
    new = [source for source in unit if source.path not in current]
    tiles: Counter[str | None] = Counter()
    for source in new:
        tiles[standing.get(source.path)] += source.weight
    # The split that most tiles have goes first, so that a wrong line of a table costs few images.
    new.sort(key=lambda each: (-tiles[standing.get(each.path)], each.path))
    together, taken = DisjointSet(), set[str]()
    # A source that has a split, by the root of what was taken and belongs together.
    placed: dict[Hashable, SplitSource] = {}
    reasons: dict[str, str] = {}
    for source in [*(each for each in unit if each.path in current), *new]:
        own: Hashable = ("path", source.path)
        near = [("path", path) for path in partners.get(source.path, ()) if path in taken]
        nodes: list[Hashable] = [*_shared(source), *near]
        anchors = [placed[root] for root in map(together.root, nodes) if root in placed]
        if source.path in standing:
            anchors.append(source)
        splits: dict[str, SplitSource] = {}
        for each in anchors:
            splits.setdefault(standing[each.path], each)
        if len(splits) > 1:
            chosen_hint = RENAME if source.path in former else CHOOSE_AGAIN
            advice = chosen_hint if source.path in standing else LEAK_HINT
            reasons[source.path] = _format_conflict(splits, advice)
            continue
        taken.add(source.path)
        for node in nodes:
            together.join(node, own)
        if anchors:
            placed[together.root(own)] = anchors[0]
    return reasons


def _within(pairs: Iterable[tuple[str, str]], paths: set[str]) -> list[tuple[str, str]]:
    return [pair for pair in pairs if paths.issuperset(pair)]


def _current_split(
    unit: Sequence[SplitSource],
    current: Mapping[str, str],
    advice: str = LEAK_HINT,
) -> str | None:
    """Return the split that members of a unit had before, None if none had one."""
    splits: dict[str, SplitSource] = {}
    for source in unit:
        if source.path in current:
            splits.setdefault(current[source.path], source)
    if len(splits) > 1:
        raise SplitLeakError(_format_conflict(splits, advice))
    return next(iter(splits), None)


def _format_conflict(splits: Mapping[str, SplitSource], advice: str) -> str:
    """Return in words that sources of different splits belong together."""
    members = " and ".join(
        f"{source.path} ({split}{f', group {source.group}' if source.group else ''})"
        for split, source in sorted(splits.items())
    )
    return (
        f"{members} belong together, by their group, their pixels or what they show, but stand in "
        f"different splits. {advice}"
    )


def weights_of(sources: Iterable[SplitSource]) -> Counter[str]:
    """Return the numbers of tiles by class."""
    weights: Counter[str] = Counter()
    for source in sources:
        weights[source.label] += source.weight
    return weights


def check_leaks(rows: Iterable[tuple[str, str, str | None]]) -> None:
    """Raise if a source or a group stands in two splits."""
    splits: dict[tuple[str, str], str] = {}
    for split, sha256, group in rows:
        for kind, value in (("source", sha256), ("group", group)):
            if value is None:
                continue
            before = splits.setdefault((kind, value), split)
            if before != split:
                raise SplitLeakError(
                    f"{kind} {value} stands in the splits {before} and {split}. Put it into one."
                )


def canonical_copies(sources: Iterable[SplitSource]) -> dict[str, SplitSource]:
    """Return, by content, the source that represents all with its pixels: the first by path."""
    first: dict[str, SplitSource] = {}
    for source in sorted(sources, key=lambda source: source.path):
        first.setdefault(source.content, source)
    return first


def copies(sources: Sequence[SplitSource]) -> dict[str, str]:
    """Return, for each untiled copy, which source it is a copy of, by path, in words.

    Examples
    --------
    >>> copies([SplitSource("a.png", "x", "l", pixel_sha256="p"),
    ...         SplitSource("a.tif", "y", "l", pixel_sha256="p")])
    {'a.tif': 'the same pixels as a.png'}
    """
    first = canonical_copies(sources)
    return {
        source.path: same_as(first[source.content].path, source, first[source.content])
        for source in sources
        if first[source.content] is not source
    }


class HasDigest(Protocol):
    """An object with the digest of its bytes."""

    @property
    def sha256(self) -> str | None: ...  # noqa: D102


def same_as(path: str, one: HasDigest, other: HasDigest) -> str:
    """Return in words what two sources with the same content share."""
    return f"the same {'bytes' if one.sha256 == other.sha256 else 'pixels'} as {path}"


def _check_labels(sources: Sequence[SplitSource]) -> None:
    first = canonical_copies(sources)
    for source in sources:
        other = first[source.content]
        if source.label != other.label:
            raise LabelError(
                f"{source.path} has {same_as(other.path, source, other)}, but they are labelled "
                f"{source.label!r} and {other.label!r}. Keep the right one."
            )


def _chosen(
    sources: Sequence[SplitSource], units: Iterable[Sequence[SplitSource]]
) -> dict[str, str]:
    assigned = {}
    for source in sources:
        if source.split not in SPLITS:
            raise LabelError(
                f"{source.path} has the split {source.split!r}. Where splits are chosen, each "
                f"image needs one of {', '.join(SPLITS)}."
            )
        assigned[source.path] = source.split
    for unit in units:
        _current_split(unit, assigned, "Give all of them one split.")
    return assigned


def connected_groups(
    sources: Sequence[SplitSource], links: Iterable[tuple[str, str]] = ()
) -> list[list[SplitSource]]:
    """Return sources that share bytes, pixels, a group or a link, directly or through others."""
    together = DisjointSet()
    for source in sources:
        for node in _shared(source):
            together.join(node, ("path", source.path))
    for one, other in links:
        together.join(("path", one), ("path", other))
    units: dict[Hashable, list[SplitSource]] = {}
    for source in sources:
        units.setdefault(together.root(("path", source.path)), []).append(source)
    return list(units.values())


def _shared(source: SplitSource) -> list[Hashable]:
    """Return what a source may have in common with others."""
    values = ("bytes", source.sha256), ("pixels", source.pixel_sha256), ("group", source.group)
    return [node for node in values if node[1] is not None]


def rank_of(unit: Sequence[SplitSource], *salt: object) -> str:
    """Return a hash of the pictures of a unit, which orders units of about equal size."""
    smallest = min(source.content for source in unit)
    return hashlib.sha256("\0".join([*map(str, salt), smallest]).encode()).hexdigest()

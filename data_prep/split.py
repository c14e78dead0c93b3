"""Which source belongs to which split: once for each, before tiling, so that nothing leaks.

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

from distkeras_grid.errors import ConfigurationError, LabelError, SplitLeakError

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Source:
    """One image file.

    Parameters
    ----------
    path : str
        Below the input folder.
    sha256 : str
        Digest of its bytes.
    label : str
    group : str or None
    split : str or None
        Where somebody has chosen it.
    pixel_sha256 : str, optional
        Digest of its pixels, which other bytes can hold as well.
    """

    path: str
    sha256: str
    label: str
    group: str | None = None
    split: str | None = None
    pixel_sha256: str | None = None

    @property
    def content(self) -> str:
        """What identifies the picture: its pixels, or the bytes where those are not known."""
        return self.pixel_sha256 or self.sha256


def parse_fractions(text: str) -> dict[str, float]:
    """Read the shares of the splits.

    Parameters
    ----------
    text : str
        ``"0.8:0.1:0.1"`` for train, validation and test, ``"0.8:0.2"`` for train and test,
        ``"1"`` for train alone.

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
    sources: Sequence[Source],
    fractions: dict[str, float],
    seed: int,
    kept: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Assign each source to a split.

    Sources of one group, or with the same bytes or pixels, go together. Within each class the
    numbers follow the fractions as closely as whole numbers can (largest remainder). Which source
    goes where depends on its pixels and on the seed, on no order, no name and no file format.

    Parameters
    ----------
    sources : sequence of Source
        If one has a chosen split, all must have.
    fractions : dict of str to float
        Shares by split, adding up to 1.
    seed : int
    kept : mapping of str to str, optional
        Splits by path that were assigned before and stay; sources that come with them follow them,
        the others fill what is missing from the fractions.

    Returns
    -------
    dict of str to str
        Split by path.

    Raises
    ------
    LabelError
        If sources with the same pixels have different labels, or only some a chosen split.
    SplitLeakError
        If chosen or kept splits tear a group apart.
    """
    _check_labels(sources)
    if any(source.split for source in sources):
        return _chosen(sources)
    by_class: dict[str, list[list[Source]]] = {}
    for unit in _units(sources):
        counts = Counter(source.label for source in unit)
        label = min(counts, key=lambda name: (-counts[name], name))
        by_class.setdefault(label, []).append(unit)
    assigned: dict[str, str] = {}
    for label, members in sorted(by_class.items()):
        members.sort(key=lambda unit: _rank(unit, label, seed))
        before = [_kept_split(unit, kept or {}) for unit in members]
        names = iter(_missing(before, fractions))
        for unit, former in zip(members, before, strict=True):
            name = next(names) if former is None else former
            assigned.update({source.path: name for source in unit})
    return assigned


def _kept_split(unit: Sequence[Source], kept: Mapping[str, str]) -> str | None:
    """Return the split that some of a unit have from before, None where none has."""
    splits = {kept[source.path]: source.path for source in unit if source.path in kept}
    if len(splits) > 1:
        told = " and ".join(f"{path} ({split})" for split, path in sorted(splits.items()))
        raise SplitLeakError(
            f"{told} belong together, by --group or by their pixels, but stand in different splits "
            "already. Undo what joins them, or tile anew (--overwrite)."
        )
    return next(iter(splits), None)


def _missing(before: Sequence[str | None], fractions: dict[str, float]) -> list[str]:
    """Return the splits of those that have none, so that all together come near the fractions."""
    total, had = before.count(None), Counter(before)
    quotas = largest_remainder(len(before), list(fractions.values()))
    lacking = [max(0, n - had[name]) for name, n in zip(fractions, quotas, strict=True)]
    if sum(lacking) > total:  # one split has more than its share already
        lacking = largest_remainder(total, [n / sum(lacking) for n in lacking])
    return [name for name, n in zip(fractions, lacking, strict=True) for _ in range(n)]


def largest_remainder(total: int, shares: Sequence[float]) -> list[int]:
    """Divide a whole number by shares that add up to 1.

    Examples
    --------
    >>> largest_remainder(20, [0.8, 0.1, 0.1]), largest_remainder(4, [0.8, 0.1, 0.1])
    ([16, 2, 2], [3, 1, 0])
    """
    # 0.1 * 30 is 3.0000000000000004: rounded before the whole part is taken.
    exact = [round(total * share, 9) for share in shares]
    parts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def check_leaks(rows: Iterable[tuple[str, str, str | None]]) -> None:
    """Raise if a source or a group stands in two splits.

    Parameters
    ----------
    rows : iterable of (split, sha256, group)

    Raises
    ------
    SplitLeakError
        Names what stands in two splits.
    """
    seen: dict[tuple[str, str], str] = {}
    for split, sha256, group in rows:
        for kind, value in (("source", sha256), ("group", group)):
            if value is None:
                continue
            before = seen.setdefault((kind, value), split)
            if before != split:
                raise SplitLeakError(
                    f"{kind} {value} stands in the splits {before} and {split}. Put it into one."
                )


def originals(sources: Iterable[Source]) -> dict[str, Source]:
    """Return, by content, the source that stands for all with its pixels: the first by path."""
    first: dict[str, Source] = {}
    for source in sorted(sources, key=lambda source: source.path):
        first.setdefault(source.content, source)
    return first


def copies(sources: Sequence[Source]) -> dict[str, str]:
    """Return of which other source each that is not tiled itself is a copy, by path, in words.

    Examples
    --------
    >>> copies([Source("a.png", "x", "l", pixel_sha256="p"),
    ...         Source("a.tif", "y", "l", pixel_sha256="p")])
    {'a.tif': 'the same pixels as a.png'}
    """
    first = originals(sources)
    return {
        source.path: same_as(first[source.content].path, source, first[source.content])
        for source in sources
        if first[source.content] is not source
    }


class HasDigest(Protocol):
    """What knows the digest of its bytes."""

    @property
    def sha256(self) -> str | None: ...  # noqa: D102


def same_as(path: str, one: HasDigest, other: HasDigest) -> str:
    """Return in words what two sources with the same content share."""
    return f"the same {'bytes' if one.sha256 == other.sha256 else 'pixels'} as {path}"


def _check_labels(sources: Sequence[Source]) -> None:
    first = originals(sources)
    for source in sources:
        other = first[source.content]
        if source.label != other.label:
            raise LabelError(
                f"{source.path} has {same_as(other.path, source, other)}, but they are labelled "
                f"{source.label!r} and {other.label!r}. Keep the right one."
            )


def _chosen(sources: Sequence[Source]) -> dict[str, str]:
    assigned = {}
    for source in sources:
        if source.split not in SPLITS:
            raise LabelError(
                f"{source.path} has the split {source.split!r}. Where splits are chosen, each "
                f"image needs one of {', '.join(SPLITS)}."
            )
        assigned[source.path] = source.split
    check_leaks((assigned[source.path], source.content, source.group) for source in sources)
    return assigned


def _units(sources: Sequence[Source]) -> list[list[Source]]:
    """Group sources that share bytes, pixels or a group, directly or through others."""
    parents: dict[Hashable, Hashable] = {}

    def root(node: Hashable) -> Hashable:
        while parents.setdefault(node, node) != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for source in sources:
        bytes_node = ("sha256", source.sha256)
        for node in (("pixels", source.pixel_sha256), ("group", source.group)):
            if node[1] is not None:
                parents[root(node)] = root(bytes_node)
    units: dict[Hashable, list[Source]] = {}
    for source in sources:
        units.setdefault(root(("sha256", source.sha256)), []).append(source)
    return list(units.values())


def _rank(unit: Sequence[Source], label: str, seed: int) -> str:
    smallest = min(source.content for source in unit)
    return hashlib.sha256(f"{seed}\0{label}\0{smallest}".encode()).hexdigest()

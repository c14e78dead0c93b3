"""Whether training and test data share pictures, groups or fields of view; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distkeras_grid.dataset.manifest import DuplicatePair


@dataclass(frozen=True, slots=True)
class LeakRecord:
    """One picture in one split."""

    name: str  # Path of the picture
    split: str
    content: str  # Digest of its pixels
    group: str | None = None  # Group, such as a specimen


@dataclass(frozen=True, slots=True)
class Leak:
    """Something that is in more than one split."""

    kind: str
    pictures: tuple[LeakRecord, ...]  # One picture of each split
    why: str  # The reason, in words

    def describe(self) -> str:
        """Return the leak as a line for a person."""
        names = ", ".join(f"{each.name} ({each.split})" for each in self.pictures)
        return f"{self.kind}: {names}: {self.why}"

    def to_json(self) -> dict[str, Any]:
        """Return the leak as JSON types."""
        return {
            "kind": self.kind,
            "why": self.why,
            "pictures": {each.split: each.name for each in self.pictures},
        }


def find_leaks(
    pictures: Sequence[LeakRecord], likenesses: Iterable[DuplicatePair] = ()
) -> list[Leak]:
    """Return everything that is in more than one split.

    Examples
    --------
    >>> found = find_leaks([LeakRecord("a.png", "train", "x"), LeakRecord("b.tif", "test", "x")])
    >>> [leak.describe() for leak in found]
    ['pixels: b.tif (test), a.png (train): the pixels are the same']
    """
    leaks = [
        Leak("pixels", apart, "the pixels are the same")
        for _, apart in _apart((each.content, each) for each in pictures)
    ]
    grouped = ((each.group, each) for each in pictures if each.group is not None)
    leaks += [Leak("group", apart, f"the group is {name}") for name, apart in _apart(grouped)]
    by_name = {each.name: each for each in pictures}
    for pair in likenesses:
        both = sorted((by_name[pair.one], by_name[pair.other]), key=lambda each: each.split)
        if both[0].split != both[1].split and both[0].content != both[1].content:
            leaks.append(Leak("likeness", tuple(both), pair.why))
    return leaks


def _apart(keyed: Iterable[tuple[str, LeakRecord]]) -> list[tuple[str, tuple[LeakRecord, ...]]]:
    """Return one picture of each split, for each key that is in several splits."""
    records: dict[str, dict[str, LeakRecord]] = {}
    for key, picture in keyed:
        records.setdefault(key, {}).setdefault(picture.split, picture)
    return [
        (key, tuple(by_split[split] for split in sorted(by_split)))
        for key, by_split in sorted(records.items())
        if len(by_split) > 1
    ]

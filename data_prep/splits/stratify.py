"""Which unit of sources goes into which split, so that shares of tiles come near the wanted ones.

A unit is never divided, so shares are met as closely as whole units allow. Pure arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """Sources that stay together in one split."""

    rank: str  # A hash, which orders units of about equal size
    weights: Mapping[str, int]  # Number of tiles by class
    current: str | None = None  # Split to which the unit already belongs

    @property
    def size(self) -> int:
        """Number of tiles of all classes."""
        return sum(self.weights.values())

    @property
    def classes(self) -> list[str]:
        """Classes of the unit's tiles, sorted so that sums over them round the same everywhere."""
        return sorted(name for name, weight in self.weights.items() if weight)


def assign_groups(units: Sequence[SplitGroup], fractions: Mapping[str, float]) -> list[str]:
    """Assign each unit to a split.

    Large units go first, each to the split that lacks most. The last units of a class go to the
    splits that have none of it yet. So a class has tiles in each split if it has as many units as
    there are splits; this is certain if no unit holds several classes.

    Examples
    --------
    >>> counts = {"x": 100, "y": 10, "z": 8}
    >>> specimens = [SplitGroup(name, {"a": count}) for name, count in counts.items()]
    >>> assign_groups(specimens, {"train": 0.6, "validation": 0.2, "test": 0.2})
    ['train', 'validation', 'test']
    """
    filling = _GroupAssignment(units, fractions)
    present = Counter(name for unit in units for name in unit.classes)
    # The rarest class of a unit decides: the other classes have more units to choose from.
    rarest: dict[str, list[int]] = {}
    for i, unit in enumerate(units):
        if unit.current is None:
            name = min(unit.classes, key=lambda name: (present[name], name), default="")
            rarest.setdefault(name, []).append(i)
    for name in sorted(rarest, key=lambda name: (present[name], name)):
        # Sizes as powers of two: among units of about equal size only the hash decides.
        todo = sorted(rarest[name], key=lambda i: (-units[i].size.bit_length(), units[i].rank))
        for done, i in enumerate(todo):
            filling.place(i, name, len(todo) - done)
    filling.repair()
    return [str(split) for split in filling.splits]


class _GroupAssignment:
    """The splits while they are filled."""

    def __init__(self, units: Sequence[SplitGroup], fractions: Mapping[str, float]) -> None:
        self._units = units
        self._wanted = [split for split, share in fractions.items() if share > 0]
        totals: Counter[str] = Counter()
        for unit in units:
            totals.update(unit.weights)
        self._totals = totals
        self._fractions = fractions
        self._have: dict[str, Counter[str]] = {split: Counter() for split in fractions}
        self._holders: dict[str, Counter[str]] = {split: Counter() for split in fractions}
        self.splits: list[str | None] = [None] * len(units)
        for i, unit in enumerate(units):
            if unit.current is not None:
                self._put(i, unit.current)

    def place(self, i: int, name: str, remaining: int) -> None:
        """Put a unit where it is needed most; `remaining` units of its class are left."""
        empty = [split for split in self._wanted if not self._holders[split][name]]
        choices = empty if len(empty) >= remaining else self._wanted
        self._put(i, min(choices, key=lambda split: self._cost(i, split)))

    def repair(self) -> None:
        """Move units that were placed here so that no class is missing in a split, if possible."""
        for name, split in self._empty_cells():
            movable = [i for i in range(len(self._units)) if self._may_leave(i, name)]
            if movable and not self._holders[split][name]:
                i = min(movable, key=lambda i: (self._units[i].size, self._units[i].rank))
                self._put(i, split)

    def _put(self, i: int, split: str) -> None:
        unit, former = self._units[i], self.splits[i]
        for place, sign in ((former, -1), (split, 1)):
            if place is not None:
                have = self._have.setdefault(place, Counter())
                holders = self._holders.setdefault(place, Counter())
                for name in unit.classes:
                    have[name] += sign * unit.weights[name]
                    holders[name] += sign
        self.splits[i] = split

    def _cost(self, i: int, split: str) -> float:
        """Return how the squared distance from the shares changes, with equal weight of classes."""
        cost = 0.0
        for name in self._units[i].classes:
            weight, total = self._units[i].weights[name], self._totals[name]
            over = self._have[split][name] - self._fractions[split] * total
            # 0.1 * 30 is 3.0000000000000004: without rounding it would win over an equal split.
            cost += round(weight * (weight + 2 * over) / total**2, 12)
        return cost

    def _empty_cells(self) -> Iterable[tuple[str, str]]:
        return [
            (name, split)
            for name in sorted(self._totals)
            for split in self._wanted
            if not self._holders[split][name]
        ]

    def _may_leave(self, i: int, name: str) -> bool:
        unit, split = self._units[i], self.splits[i]
        if unit.current is not None or split is None or name not in unit.classes:
            return False
        return all(self._holders[split][other] > 1 for other in unit.classes)

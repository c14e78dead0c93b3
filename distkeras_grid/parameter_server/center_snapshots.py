"""Copies of the center, made during an epoch and kept until the driver has fetched them.

While the driver validates one center, fast workers may end many epochs. The first few copies are in
memory, and the others on a shelf, which a real server has on disk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, MutableMapping
from typing import TypeAlias

from distkeras_grid.errors import RefusedError
from distkeras_grid.weights import Vector

#: Copies that are in memory.
IN_MEMORY = 2
#: Where the other copies lie, by number.
Shelf: TypeAlias = MutableMapping[int, Vector]


class Snapshots:
    """The snapshots of a run, numbered from 1.

    If workers make the steps, the server receives the weights of a version later than the version
    itself. A snapshot that is due then waits for them.

    `per_epoch`: number of snapshots in one epoch; 0 for none.
    `shelf`: stores copies of vectors that are not needed soon; without one, all are in memory.
    """

    def __init__(self, per_epoch: int, shelf: Shelf | None = None) -> None:
        self._per_epoch = per_epoch
        self._shelf = shelf
        self._made: dict[int, Vector] = {}
        self._awaited: dict[int, int] = {}
        self._fetched: int | None = None

    @property
    def awaits(self) -> bool:
        """Whether a snapshot waits for the weights of its version."""
        return bool(self._awaited)

    @property
    def first_epoch_missing(self) -> float:
        """The first epoch whose snapshot is awaited; infinity if there is none."""
        return min(self._awaited, default=math.inf) / max(1, self._per_epoch)

    def take(self, due: Iterable[int], center: Vector) -> None:
        """Copy the center for each snapshot that is due."""
        for number in due:
            if self._shelf is None or len(self._made) < IN_MEMORY:
                self._made[number] = center.copy()
            else:
                self._shelf[number] = center

    def wait_for(self, due: Iterable[int], version: int) -> None:
        """Make the snapshots that are due wait for the weights of a version."""
        self._awaited.update(dict.fromkeys(due, version))

    def arrive(self, version: int, center: Vector) -> None:
        """Make the awaited snapshots of versions up to the center's, which is `version`."""
        due = [number for number, awaited in self._awaited.items() if awaited <= version]
        for number in due:
            del self._awaited[number]
        self.take(due, center)

    def give(self, number: int) -> Vector:
        """Return a snapshot. It is kept until `drop_fetched`, because the answer may be lost."""
        shelf = self._shelf or {}
        if number not in self._made and number not in shelf:
            raise RefusedError(
                f"Snapshot {number} is not there: it is not due yet, was fetched before, or the "
                f"run makes none. Received: a request for it in a run of {self._per_epoch} "
                "snapshots an epoch."
            )
        self._fetched = number
        return shelf[number] if number in shelf else self._made[number]

    def drop_fetched(self, but: int | None) -> None:
        """Drop the snapshot that was returned last, unless it is requested again."""
        if self._fetched is not None and self._fetched != but:
            self._made.pop(self._fetched, None)
            if self._shelf:
                self._shelf.pop(self._fetched, None)
            self._fetched = None

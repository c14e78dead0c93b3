"""Copies of the center, made during an epoch and kept until the driver has fetched them.

While the driver validates one center, fast workers may end many epochs. The first few copies are in
memory, and the others where `Spill` puts them: a real server has them on disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from distkeras_grid.errors import RefusedError
from distkeras_grid.weights import Vector

#: Copies that are in memory.
IN_MEMORY = 2
#: Returns a copy of a vector that is not needed soon.
Spill: TypeAlias = Callable[[Vector], Vector]


class Snapshots:
    """The snapshots of a run, numbered from 1.

    If workers make the steps, the server receives the weights of a version later than the version
    itself. A snapshot that is due then waits for them.

    The driver asks for them in order. Those that it has passed over are dropped.

    `per_epoch`: number of snapshots in one epoch; 0 for none.
    """

    def __init__(self, per_epoch: int, spill: Spill = np.copy) -> None:
        self._per_epoch, self._spill = per_epoch, spill
        self._made: dict[int, Vector] = {}
        self._awaited: dict[int, int] = {}
        self._asked = 0  # The newest that was asked for

    @property
    def is_waiting(self) -> bool:
        """Whether a snapshot waits for the weights of its version."""
        return bool(self._awaited)

    @property
    def first_epoch_missing(self) -> float:
        """The first epoch whose snapshot is awaited; infinity if there is none."""
        return min(self._awaited, default=math.inf) / max(1, self._per_epoch)

    def take(self, due: Iterable[int], center: Vector) -> None:
        """Copy the center for each snapshot that is due."""
        for number in due:
            if number >= self._asked:
                few = len(self._made) < IN_MEMORY
                self._made[number] = center.copy() if few else self._spill(center)

    def wait_for(self, due: Iterable[int], version: int) -> None:
        """Make the snapshots that are due wait for the weights of a version."""
        self._awaited.update(dict.fromkeys(due, version))

    def on_weights(self, version: int, center: Vector) -> None:
        """Make the awaited snapshots of versions up to the center's, which is `version`."""
        due = [number for number, awaited in self._awaited.items() if awaited <= version]
        for number in due:
            del self._awaited[number]
        self.take(due, center)

    def get(self, number: int) -> Vector:
        """Return a snapshot, and drop those before it.

        It is kept until a later one is asked for, because the answer may be lost.
        """
        self._asked = max(self._asked, number)
        self._made = {each: center for each, center in self._made.items() if each >= self._asked}
        if number not in self._made:
            raise RefusedError(
                f"Snapshot {number} is not there: it is not due yet, a later one was asked for, or "
                f"the run makes none. Received: a request for it in a run of {self._per_epoch} "
                "snapshots an epoch."
            )
        return self._made[number]

"""The local sets of a simulated worker: real tiles, which it reads and tests in simulated time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from distkeras_grid.simulation.cluster import Cluster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distkeras_grid.feeding.batches import Epochs, Window
    from distkeras_grid.records import LocalSet
    from distkeras_grid.rows import Block


class Work(Protocol):
    """What a worker trains and tests on; `distkeras_grid.local_sets.work.LocalWork` is one."""

    @property
    def policy(self) -> Epochs:
        """The worker's windows, whose positions are tile numbers."""
        ...

    def test_after(self, window: Window) -> NDArray[np.int64] | None:
        """Return the test set that is due after a window; None before the end of an iteration."""
        ...

    def report(
        self, window: Window, evaluate: Callable[[Iterator[Block]], dict[str, float]]
    ) -> LocalSet | None:
        """Test the model if the window was the last of its iteration; return the record of that."""
        ...

    def give_up(self) -> None:
        """Drop the tiles that are held."""
        ...


class SimulatedSets:
    """What one simulated worker reads and tests, and how long that takes.

    As a real worker, it reads the tiles of a window before the window begins, those of the first
    one before it is ready, and those of a test set before the test; and none that it has at hand.

    Parameters
    ----------
    work : Work
        The worker's sets. Its tiles are read when a window is computed, and dropped after it.
    cluster : Cluster
        Time of a tile and of a test's batch.
    number : int
        Number of the worker.
    """

    def __init__(self, work: Work, cluster: Cluster, number: int) -> None:
        self._work, self._cluster, self._number = work, cluster, number
        self.begin_anew()

    def begin_anew(self) -> None:
        """Have nothing at hand, as a new attempt."""
        self._trained = self._tested = np.empty(0, np.int64)
        self._read_seconds = self._test_seconds = 0.0

    def read(self, window: Window) -> float:
        """Begin to read the tiles of a window; return how long that takes [s]."""
        wanted = np.unique(np.concatenate([block.ravel() for block in window.blocks]))
        if np.array_equal(wanted, self._trained):
            return 0.0
        self._trained = wanted
        return self._count(len(wanted))

    def test(self, window: Window) -> float:
        """Return how long the test after a window takes, with reading its tiles; 0 if none is due.

        Returns
        -------
        float
            In seconds.
        """
        due = self._work.test_after(window)
        self._test_seconds = 0.0
        if due is None or not len(due):
            return 0.0
        wanted, reading = np.unique(due), 0.0
        if not np.array_equal(wanted, self._tested):
            self._tested, reading = wanted, self._count(len(wanted))
        batches = math.ceil(len(due) / self._work.policy.batch_size)
        self._test_seconds = self._cluster.test_seconds(self._number, batches)
        return reading + self._test_seconds

    def report(
        self, window: Window, evaluate: Callable[[Iterator[Block]], dict[str, float]]
    ) -> LocalSet | None:
        """Test the worker's model if a test is due; return the record, in simulated seconds."""
        told = self._work.report(window, evaluate)
        self._work.give_up()
        if told is None:
            return None
        seconds, self._read_seconds = self._read_seconds, 0.0
        return msgspec.structs.replace(told, read_seconds=seconds, test_seconds=self._test_seconds)

    def _count(self, tiles: int) -> float:
        seconds = self._cluster.reading_seconds(self._number, tiles)
        self._read_seconds += seconds
        return seconds

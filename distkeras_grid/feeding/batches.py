"""Which rows of a seat are in which batch, window and epoch, the same in every attempt.

A `BatchSampler` returns positions of rows and does not know the rows. `EpochSampler` is the one
that training uses. Its order depends only on (seed, seat, epoch), so a task that runs again can
start at any window; the server tells it how many are folded. No row is left out: the last batch of
an epoch may have fewer rows, and its last window fewer batches, or one more
(`ScheduleSpec.windows_per_epoch`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.spec import ScheduleSpec

# Batches in a block if the window is an epoch. The rows of a block are in memory together.
BLOCK_STEPS = 32


@dataclass(frozen=True)
class Window:
    """The batches between two exchanges."""

    sequence: int  # Number of the window among all windows of the seat, over all epochs, from 0
    # epoch and window: Epoch of its first batch, from 1, and the window's number in that epoch,
    # from 0
    epoch: int
    window: int
    # Positions of rows in the seat's order, int64. Each block has the shape ``(steps, batch)``.
    # Full batches come first; a shorter last batch is a block of its own.
    blocks: tuple[NDArray[np.int64], ...]

    @property
    def steps(self) -> int:
        """Batches."""
        return sum(len(block) for block in self.blocks)


class BatchSampler(Protocol):
    """The windows of one seat, in order.

    `tests.contracts.test_policies` holds every policy to what is said here.
    """

    def windows(self, start: int = 0) -> Iterator[Window]:
        """Yield the windows from the one of number `start` on.

        Windows are numbered from 0 without a gap. The same policy always yields the same windows,
        wherever it starts. Each has at least one batch, and no batch is empty.
        """
        ...

    def steps_before(self, sequence: int) -> int:
        """Return the batches of all windows before the one of number `sequence`."""
        ...


@dataclass(frozen=True, kw_only=True)
class EpochSampler:
    """Every row once in each epoch.

    Examples
    --------
    >>> first, last = EpochSampler(rows=5, batch_size=2, window=2, shuffle=False).windows()
    >>> [block.tolist() for block in first.blocks], [block.tolist() for block in last.blocks]
    ([[[0, 1], [2, 3]]], [[[4]]])
    """

    rows: int  # Rows of the seat. Without rows there is no window.
    batch_size: int  # Rows in a batch
    # Batches in a window; None for one window in `epochs_per_window` epochs
    window: int | None = None
    epochs: int = 1  # Passes over the rows
    epochs_per_window: int = 1  # Epochs in a window, where `window` is None
    seed: int = 0  # seed and seat: Decide the order, together with the epoch
    seat: int = 0
    # Whether each epoch has its own random order. Otherwise the rows keep theirs.
    shuffle: bool = True
    # Whether to train on a sample of as many rows, drawn once with replacement
    bootstrap: bool = False
    # Epochs that other workers have trained. The windows are those of the epochs after them.
    before: int = 0
    # Windows of an epoch, where `window` is not None; by default as many as the rows have. If they
    # are fewer, the last one takes all batches that are left.
    windows_per_epoch: int | None = None

    def windows(self, start: int = 0) -> Iterator[Window]:
        """Yield the windows from the one of number `start` on; see `BatchSampler`."""
        if self.rows == 0:
            return iter(())
        sample = bootstrap_sample(self.rows, self.seed, self.seat) if self.bootstrap else None
        if self.window is None:
            return self._whole_epochs(sample, start)
        return self._parts_of_epochs(sample, self.window, start)

    def steps_before(self, sequence: int) -> int:
        """Return the batches of all windows before the one of number `sequence`.

        Those of the epochs before count as if this seat had trained them.

        Examples
        --------
        >>> policy = EpochSampler(rows=50, batch_size=10, window=2)
        >>> [policy.steps_before(sequence) for sequence in range(5)]
        [0, 2, 4, 5, 7]
        """
        if self.rows == 0:
            return 0
        steps = math.ceil(self.rows / self.batch_size)
        if self.window is None:
            return (self.before + sequence * self.epochs_per_window) * steps
        epochs, windows = divmod(sequence, self._per_epoch(self.window))
        return (self.before + epochs) * steps + windows * self.window

    def _per_epoch(self, window: int) -> int:
        return self.windows_per_epoch or math.ceil(self.rows / (self.batch_size * window))

    def _order(self, sample: NDArray[np.int64] | None, epoch: int) -> NDArray[np.int64]:
        order = epoch_order(self.rows, self.seed, self.seat, epoch, shuffle=self.shuffle)
        return order if sample is None else sample[order]

    def _whole_epochs(self, sample: NDArray[np.int64] | None, start: int) -> Iterator[Window]:
        starts = range(1 + self.before, self.epochs + 1, self.epochs_per_window)
        for sequence, first in list(enumerate(starts))[start:]:
            last = min(self.epochs, first + self.epochs_per_window - 1)
            blocks = [
                blocks_of(self._order(sample, epoch), self.batch_size, BLOCK_STEPS)
                for epoch in range(first, last + 1)
            ]
            yield Window(sequence, first, 0, tuple(chain.from_iterable(blocks)))

    def _parts_of_epochs(
        self, sample: NDArray[np.int64] | None, window: int, start: int
    ) -> Iterator[Window]:
        per_epoch, length = self._per_epoch(window), window * self.batch_size
        for sequence in range(start, per_epoch * (self.epochs - self.before)):
            epoch, number = divmod(sequence, per_epoch)
            epoch += self.before
            if number == 0 or sequence == start:
                order = self._order(sample, epoch + 1)
            part = order[
                number * length : None if number == per_epoch - 1 else (number + 1) * length
            ]
            yield Window(sequence, epoch + 1, number, blocks_of(part, self.batch_size, window))


def policy_of(schedule: ScheduleSpec, rows: int, seat: int) -> EpochSampler:
    """Return the policy of a seat according to a run's schedule."""
    return EpochSampler(
        rows=rows,
        batch_size=schedule.batch_size,
        window=schedule.window,
        epochs=schedule.epochs,
        epochs_per_window=schedule.epochs_per_window,
        seed=schedule.seed,
        seat=seat,
        shuffle=schedule.shuffle,
        bootstrap=schedule.bootstrap,
        before=schedule.epochs_before,
        windows_per_epoch=schedule.windows_per_epoch(rows),
    )


def epoch_order(rows: int, seed: int, seat: int, epoch: int, *, shuffle: bool) -> NDArray[np.int64]:
    """Return the order of a seat's rows in one epoch, from 1."""
    if not shuffle:
        return np.arange(rows)
    return np.random.default_rng([seed, seat, epoch]).permutation(rows)


def bootstrap_sample(rows: int, seed: int, seat: int) -> NDArray[np.int64]:
    """Return as many positions as there are rows, drawn with replacement and sorted."""
    return np.sort(np.random.default_rng([seed, seat, 0]).integers(0, rows, rows))


def blocks_of(
    places: NDArray[np.int64], batch_size: int, steps: int
) -> tuple[NDArray[np.int64], ...]:
    """Cut an order of rows into blocks of at most so many batches; see `Window`.

    Examples
    --------
    >>> [block.tolist() for block in blocks_of(np.arange(5), batch_size=1, steps=3)]
    [[[0], [1], [2]], [[3], [4]]]
    """
    full = len(places) // batch_size * batch_size
    batches = places[:full].reshape(-1, batch_size)
    blocks = [batches[start : start + steps] for start in range(0, len(batches), steps)]
    if full < len(places):
        blocks.append(places[full:].reshape(1, -1))
    return tuple(blocks)

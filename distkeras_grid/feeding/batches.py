"""Which rows of a seat are in which batch, window and epoch, the same in every attempt.

The order depends only on (seed, seat, epoch), so a task that runs again can start at any window;
the server tells it how many are folded. No row is left out: the last batch of an epoch may have
fewer rows, and its last window fewer batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.spec import ScheduleSpec

# Batches in a block if the window is an epoch. The rows of a block are in memory together.
BLOCK_STEPS = 32


@dataclass(frozen=True)
class Window:
    """The batches between two exchanges.

    Parameters
    ----------
    sequence : int
        Number of the window among all windows of the seat, over all epochs, from 0.
    epoch, window : int
        Epoch of its first batch, from 1, and the window's number in that epoch, from 0.
    blocks : tuple of ndarray
        Positions of rows in the seat's order, int64. Each block has the shape ``(steps, batch)``.
        Full batches come first; a shorter last batch is a block of its own.
    """

    sequence: int
    epoch: int
    window: int
    blocks: tuple[NDArray[np.int64], ...]


def seat_windows(
    schedule: ScheduleSpec, rows: int, seat: int, start_sequence: int = 0
) -> Iterator[Window]:
    """Yield the windows of a seat according to a run's schedule; see `windows`.

    Parameters
    ----------
    schedule : ScheduleSpec
        Schedule of the run.
    rows : int
        Rows of the seat.
    seat : int
        Number of the seat, from 0.
    start_sequence : int, default 0
        The first window to yield.
    """
    return windows(
        rows,
        schedule.batch_size,
        schedule.window,
        schedule.epochs,
        seed=schedule.seed,
        seat=seat,
        shuffle=schedule.shuffle,
        start_sequence=start_sequence,
        epochs_per_window=schedule.epochs_per_window,
        bootstrap=schedule.bootstrap,
    )


def windows(
    rows: int,
    batch_size: int,
    window: int | None,
    epochs: int,
    *,
    seed: int,
    seat: int,
    shuffle: bool,
    start_sequence: int = 0,
    epochs_per_window: int = 1,
    bootstrap: bool = False,
) -> Iterator[Window]:
    """Yield the windows of a seat, in order.

    Parameters
    ----------
    rows : int
        Rows of the seat. Without rows there is no window.
    batch_size : int
        Rows in a batch.
    window : int or None
        Batches in a window; None for one window an epoch, or for several epochs.
    epochs : int
        Passes over the rows.
    seed, seat : int
        Decide the order, together with the epoch.
    shuffle : bool
        Whether each epoch has its own random order. Otherwise the rows keep theirs.
    start_sequence : int
        The first window to yield.
    epochs_per_window : int, default 1
        Epochs in a window if `window` is None.
    bootstrap : bool, default False
        Whether to train on a sample of as many rows, drawn once with replacement.

    Examples
    --------
    >>> first, last = windows(5, 2, 2, 1, seed=0, seat=0, shuffle=False)
    >>> [block.tolist() for block in first.blocks], [block.tolist() for block in last.blocks]
    ([[[0, 1], [2, 3]]], [[[4]]])
    """
    if rows == 0:
        return
    kept = bootstrap_sample(rows, seed, seat) if bootstrap else np.arange(rows)
    if window is None:
        starts = range(1, epochs + 1, epochs_per_window)
        for sequence, first in list(enumerate(starts))[start_sequence:]:
            last = min(epochs, first + epochs_per_window - 1)
            orders = (
                kept[epoch_order(rows, seed, seat, epoch, shuffle=shuffle)]
                for epoch in range(first, last + 1)
            )
            blocks = [_blocks(order, batch_size, BLOCK_STEPS) for order in orders]
            yield Window(sequence, first, 0, tuple(chain.from_iterable(blocks)))
        return
    per_epoch = math.ceil(math.ceil(rows / batch_size) / window)
    for sequence in range(start_sequence, per_epoch * epochs):
        epoch, number = divmod(sequence, per_epoch)
        if number == 0 or sequence == start_sequence:
            order = kept[epoch_order(rows, seed, seat, epoch + 1, shuffle=shuffle)]
        part = order[number * window * batch_size : (number + 1) * window * batch_size]
        yield Window(sequence, epoch + 1, number, _blocks(part, batch_size, window))


def steps_before(
    sequence: int, rows: int, batch_size: int, window: int | None, epochs_per_window: int = 1
) -> int:
    """Return how many steps a seat has trained before the window of this number.

    Examples
    --------
    >>> [steps_before(sequence, rows=50, batch_size=10, window=2) for sequence in range(5)]
    [0, 2, 4, 5, 7]
    """
    if rows == 0:
        return 0
    steps = math.ceil(rows / batch_size)
    if window is None:
        return sequence * epochs_per_window * steps
    epochs, windows = divmod(sequence, math.ceil(steps / window))
    return epochs * steps + windows * window


def epoch_order(rows: int, seed: int, seat: int, epoch: int, *, shuffle: bool) -> NDArray[np.int64]:
    """Return the order of a seat's rows in one epoch, from 1."""
    if not shuffle:
        return np.arange(rows)
    return np.random.default_rng([seed, seat, epoch]).permutation(rows)


def bootstrap_sample(rows: int, seed: int, seat: int) -> NDArray[np.int64]:
    """Return as many positions as there are rows, drawn with replacement and sorted."""
    return np.sort(np.random.default_rng([seed, seat, 0]).integers(0, rows, rows))


def _blocks(part: NDArray[np.int64], batch_size: int, steps: int) -> tuple[NDArray[np.int64], ...]:
    full = len(part) // batch_size * batch_size
    batches = part[:full].reshape(-1, batch_size)
    blocks = [batches[start : start + steps] for start in range(0, len(batches), steps)]
    if full < len(part):
        blocks.append(part[full:].reshape(1, -1))
    return tuple(blocks)

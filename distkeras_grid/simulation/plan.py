"""What a simulated run trains, on which rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.feeding.batches import Window, steps_before, windows
from distkeras_grid.parameter_server.compression import Compression
from distkeras_grid.rows import Block, take
from distkeras_grid.rules import OptimizerState, Rule


@dataclass(frozen=True)
class SeatRows:
    """The rows of one worker.

    Parameters
    ----------
    features : tuple of ndarray
        One for each input of the model, shape ``(rows, *shape)``.
    labels : tuple of ndarray
        One for each output, shape ``(rows, ...)``.
    weights : ndarray, optional
        Sample weights, shape ``(rows,)``, ``float32``.
    """

    features: tuple[NDArray[Any], ...]
    labels: tuple[NDArray[Any], ...]
    weights: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.features[0])

    def gather(self, window: Window) -> Iterator[Block]:
        """Yield the blocks of a window."""
        for places in window.blocks:
            weight = None if self.weights is None else take(self.weights, places)
            x, y = (
                tuple(take(array, places) for array in arrays)
                for arrays in (self.features, self.labels)
            )
            yield Block(x, y, weight)


@dataclass(frozen=True)
class Plan:
    """What a simulated run does, in the terms of a real one.

    Parameters
    ----------
    rule : Rule
        The update rule.
    batch_size : int
        Rows in a batch of one worker.
    window : int or None
        Batches between two exchanges; None for one exchange in `epochs_per_window`.
    epochs : int, default 1
        Passes over the rows.
    epochs_per_window : int, default 1
        See there.
    seed : int, default 0
        Seed of the order of the rows.
    shuffle : bool, default True
        Whether each epoch has an order of its own.
    quorum : float, default 1
        Share of the workers whose commits close a synchronous round, 0.5 to 1.
    round_timeout : float, default infinity
        Seconds that a synchronous round may stay incomplete.
    compression : "bfloat16" or DeepGradientCompression, optional
        How exchanges are compressed.
    optimizer_state : {"keep", "reset", "average"}, default "keep"
        What a worker's optimizer keeps from window to window.
    """

    rule: Rule
    batch_size: int
    window: int | None
    epochs: int = 1
    epochs_per_window: int = 1
    seed: int = 0
    shuffle: bool = True
    quorum: float = 1.0
    round_timeout: float = math.inf
    compression: Compression | None = None
    optimizer_state: OptimizerState = "keep"

    @property
    def epoch_window(self) -> str:
        """What a user calls a window that is no number of batches."""
        return "epoch" if self.epochs_per_window == 1 else "once"

    def steps_before(self, rows: int, sequence: int) -> int:
        """Return the batches of a worker with so many rows before the window of a number."""
        return steps_before(sequence, rows, self.batch_size, self.window, self.epochs_per_window)

    def windows(self, rows: int, worker: int, start: int) -> Iterator[Window]:
        """Yield the windows of a worker with so many rows, from the one of number `start`."""
        return windows(
            rows,
            self.batch_size,
            self.window,
            self.epochs,
            seed=self.seed,
            seat=worker,
            shuffle=self.shuffle,
            start_sequence=start,
            epochs_per_window=self.epochs_per_window,
        )

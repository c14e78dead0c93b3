"""The rows of a simulated worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.feeding.batches import Window
from distkeras_grid.rows import Block, take


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

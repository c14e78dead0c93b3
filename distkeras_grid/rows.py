"""Rows in memory: mini-batches as they go from their source to an engine, on aligned memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import DataError

# Eigen's widest vectors; TensorFlow aborts the process on memory that is aligned to less.
ALIGNMENT = 64


@dataclass(frozen=True)
class RowBlock:
    """Some mini-batches of one size."""

    # Features, one array for each input of the model, shape ``(steps, batch, *shape)``, in the type
    # in which they are stored
    x: tuple[NDArray[Any], ...]
    y: tuple[NDArray[Any], ...]  # Labels, one array for each output, shape ``(steps, batch, ...)``
    # Sample weights, shape ``(steps, batch)``, ``float32``
    weight: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        shapes = [array.shape[:2] for array in self.arrays]
        if len(set(shapes)) != 1 or len(shapes[0]) != 2 or 0 in shapes[0]:
            raise DataError(
                "The shapes of features, labels and weights in a block begin with the same (steps, "
                f"batch), each at least 1. Received: {shapes}."
            )

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All features, all labels and, where given, weights."""
        weights = () if self.weight is None else (self.weight,)
        return (*self.x, *self.y, *weights)

    @property
    def shape(self) -> tuple[int, int]:
        """``(steps, batch)``."""
        steps, batch = self.x[0].shape[:2]
        return steps, batch

    @property
    def steps(self) -> int:
        """Number of mini-batches."""
        return self.shape[0]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return math.prod(self.shape)

    def part(self, steps: slice, samples: slice) -> RowBlock:
        """Return some of the mini-batches, and of each some of its samples."""
        weight = None if self.weight is None else self.weight[steps, samples]
        x, y = (tuple(array[steps, samples] for array in arrays) for arrays in (self.x, self.y))
        return RowBlock(x, y, weight)


def aligned_empty(shape: int | tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Return an uninitialised array that starts at a multiple of 64 bytes.

    `shape`: shape of the array.
    """
    lengths = (shape,) if isinstance(shape, int) else shape
    size = math.prod(lengths) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    array: NDArray[Any] = memory[start : start + size].view(dtype).reshape(lengths)
    return array


def take(array: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """Return copies of rows, on memory that starts at a multiple of 64 bytes.

    `array`: shape ``(rows, ...)``.
    `places`: which rows, each from 0 to ``rows - 1``; of any shape.

    Examples
    --------
    >>> take(np.array([[1, 2], [3, 4]]), np.array([[1], [0]])).tolist()
    [[[3, 4]], [[1, 2]]]
    """
    check_places(places, len(array))
    out = aligned_empty((*places.shape, *array.shape[1:]), array.dtype)
    # With mode="raise" NumPy would fill another array first.
    np.take(array, places, axis=0, out=out, mode="clip")
    return out


def check_places(places: NDArray[np.int64], rows: int) -> None:
    """Refuse places where no row is; NumPy would count negative ones from the end."""
    if places.size and (places.min() < 0 or places.max() >= rows):
        raise IndexError(
            f"Places are from 0 to {rows - 1}. Received: {places.min()} to {places.max()}."
        )

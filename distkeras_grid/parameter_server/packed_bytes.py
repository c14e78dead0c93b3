"""Bytes as ``float32`` arrays, which is what an `ArrayChannel` carries."""

from __future__ import annotations

import numpy as np

from distkeras_grid.array_tree import Packed
from distkeras_grid.weights import Vector


def as_numbers(packed: Packed) -> Vector:
    """Return bytes as a ``float32`` array that can be sent; the numbers have no meaning.

    Examples
    --------
    >>> data = np.arange(7, dtype=np.uint8)
    >>> as_bytes(as_numbers(data), 7).tolist()
    [0, 1, 2, 3, 4, 5, 6]
    """
    numbers = np.zeros(-(-packed.size // 4), np.float32)
    numbers.view(np.uint8)[: packed.size] = packed
    return numbers


def as_bytes(numbers: Vector, size: int) -> Packed:
    """Return the bytes that `as_numbers` was given."""
    return numbers.view(np.uint8)[:size]

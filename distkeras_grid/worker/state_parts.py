"""An optimizer's state as vectors of the weights' size, which is how it is handed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.weights import Vector


def pack(state: Sequence[NDArray[Any]], size: int) -> list[Vector]:
    """Return the bytes of arrays in vectors of `size` scalars; the last is filled up with zeros.

    Examples
    --------
    >>> parts = pack([np.array([1.5, 2.5], np.float32), np.array(7)], size=3)
    >>> [part.size for part in parts], unpack(parts, [np.zeros(2, np.float32), np.array(0)])[1]
    ([3, 3], array(7))
    """
    data = b"".join(array.tobytes() for array in state)
    data += bytes(-len(data) % (4 * size))
    return list(np.frombuffer(data, np.float32).reshape(-1, size))


def unpack(parts: Sequence[Vector], like: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the arrays that `pack` was given.

    Parameters
    ----------
    parts : sequence of ndarray
        What it returned.
    like : sequence of ndarray
        Arrays of the same shapes and types.
    """
    data, start, arrays = b"".join(part.tobytes() for part in parts), 0, []
    for array in like:
        part = np.frombuffer(data, array.dtype, array.size, start)
        arrays.append(part.reshape(array.shape))
        start += array.nbytes
    return arrays

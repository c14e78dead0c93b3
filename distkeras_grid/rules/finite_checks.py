"""How large the numbers of a vector are, which decides whether arithmetic may overflow.

For nearly every vector the sum of a chunk's squares is enough: if it is below 1e30, no number of
the chunk is above 1e15, and none is NaN or infinite. One pass of BLAS over a chunk that stays in
the processor's cache costs less than looking at each number. If the sum is larger, each number is
looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import numpy as np

from distkeras_grid.weights import Vector

#: Numbers in a chunk: 256 KiB of ``float32``. A processor's cache holds two such chunks.
CHUNK = 65536
#: Sums, differences and products with a rate of numbers up to the root of this cannot overflow.
SMALL_SQUARES = 1e30


class Magnitude(Enum):
    """How large a vector's numbers are.

    `SMALL`: all are finite, and none is above 1e15.
    `NOT_FINITE`: at least one is NaN or infinite.
    """

    SMALL = "small"
    LARGE = "large"
    NOT_FINITE = "not finite"


def chunks(size: int) -> Iterator[slice]:
    """Return the slices of a vector's chunks, in order."""
    for start in range(0, size, CHUNK):
        yield slice(start, start + CHUNK)


def is_small(chunk: Vector) -> bool:
    """Whether all numbers of a chunk are finite and far from the largest.

    `chunk`: at most a few times `CHUNK` numbers, ``float32`` or ``float64``.

    Examples
    --------
    >>> is_small(np.array([1e14, -2], np.float32)), is_small(np.array([2e15], np.float32))
    (True, False)
    >>> is_small(np.array([np.nan], np.float32)), is_small(np.array([-np.inf], np.float32))
    (False, False)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _is_small(chunk)


def _is_small(chunk: Vector) -> bool:
    # False for NaN, too.
    return bool(np.dot(chunk, chunk) < SMALL_SQUARES)


def size_of(vector: Vector) -> Magnitude:
    """Return how large the numbers of a vector are.

    `vector`: shape ``(size,)``, ``float32`` or ``float64``.
    """
    magnitude = Magnitude.SMALL
    # Once for all chunks: it takes longer than the sum of a small one.
    with np.errstate(over="ignore", invalid="ignore"):
        for place in chunks(vector.size):
            chunk = vector[place]
            if not _is_small(chunk):
                if not np.isfinite(chunk).all():
                    return Magnitude.NOT_FINITE
                magnitude = Magnitude.LARGE
    return magnitude


def is_finite(vector: Vector) -> bool:
    """Whether every number of a vector is finite.

    Examples
    --------
    >>> is_finite(np.array([3e38, 3e38], np.float32)), is_finite(np.array([np.nan], np.float32))
    (True, False)
    """
    return size_of(vector) is not Magnitude.NOT_FINITE

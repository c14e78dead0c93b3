"""A number that tells whether a seat has the same rows as an earlier attempt.

Rows arrive in another order each time, so the digest is a sum over the rows. Each row is hashed
with its number by multiplication (Carter and Wegman, "Universal classes of hash functions", 1979,
with constant multipliers) and then mixed, so that sums of rows do not cancel. It finds rows that
were numbered anew, and files that were changed; it does not protect against an attacker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
_WORD = 8


class RowDigest:
    """The digest of the rows that have come so far.

    Examples
    --------
    >>> one, other = RowDigest(), RowDigest()
    >>> one.add(np.array([0, 1]), [hashes_of(np.array([5.0, 6.0]))])
    >>> for row in (1, 0):
    ...     other.add(np.array([row]), [hashes_of(np.array([5.0 + row]))])
    >>> one.hexdigest() == other.hexdigest()
    True
    """

    def __init__(self) -> None:
        self._sum = np.uint64(0)

    def add(self, numbers: NDArray[np.int64], columns: Sequence[Hashes]) -> None:
        """Add rows.

        `columns`: for each column the hashes of its values, in the order of the numbers.
        """
        mixed = numbers.astype(np.uint64)
        for column in columns:
            mixed = _mixed(mixed) + column
        self._sum = np.add(self._sum, _mixed(mixed).sum(dtype=np.uint64), dtype=np.uint64)

    def hexdigest(self) -> str:
        """Return the digest as 16 hexadecimal digits."""
        return f"{int(self._sum):016x}"


def hashes_of(values: NDArray[Any]) -> Hashes:
    """Return a hash of each row of an array, shape ``(rows, ...)``."""
    rows = len(values)
    if not rows or not values.size:
        return np.zeros(rows, np.uint64)
    flat = np.ascontiguousarray(values).reshape(rows, -1).view(np.uint8)
    words = np.zeros((rows, -(-flat.shape[1] // _WORD)), np.uint64)
    words.view(np.uint8)[:, : flat.shape[1]] = flat
    np.multiply(words, _multipliers(words.shape[1]), out=words)
    hashes: Hashes = words.sum(axis=1, dtype=np.uint64)
    return hashes


def hashes_of_contents(contents: Sequence[bytes | memoryview]) -> Hashes:
    """Return a hash of each file or encoded value."""
    digests = (hashlib.blake2b(content, digest_size=_WORD).digest() for content in contents)
    return np.frombuffer(b"".join(digests), np.uint64)


@lru_cache(maxsize=8)
def _multipliers(count: int) -> Hashes:
    numbers = np.random.default_rng(0).integers(0, 2**64, count, np.uint64)
    return numbers | np.uint64(1)


def _mixed(values: Hashes) -> Hashes:
    """Return numbers of which each bit depends on all bits of the given ones (SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

"""Keys with which Spark's hash partitioning puts every row into a chosen partition.

``repartition(n, key)`` sends a row to partition ``pmod(hash(key), n)``, where ``hash`` is Murmur3
with the seed 42 (Spark's `HashPartitioning`, which cannot change, because files of bucketed tables
depend on it). For one int Murmur3 is a bijection: each of its steps can be undone. So each
partition number is the hash of exactly one int, which is found without a search and works for any
number of partitions.
"""

from __future__ import annotations

_SEED = 42
_BYTES_OF_AN_INT = 4
_MASK = 0xFFFFFFFF


def partition_key(number: int) -> int:
    """Return the int whose hash in Spark is `number`.

    References
    ----------
    .. [1] A. Appleby, MurmurHash3_x86_32, https://github.com/aappleby/smhasher
    """
    mixed = number ^ (number >> 16)
    mixed = _divided(mixed, 0xC2B2AE35)
    mixed ^= (mixed >> 13) ^ (mixed >> 26)
    mixed = _divided(mixed, 0x85EBCA6B)
    mixed ^= mixed >> 16
    mixed ^= _BYTES_OF_AN_INT
    key = _rotated(_divided(mixed - 0xE6546B64, 5), 13) ^ _SEED
    key = _divided(_rotated(_divided(key, 0x1B873593), 15), 0xCC9E2D51)
    return key - (1 << 32) if key >> 31 else key


def _divided(number: int, factor: int) -> int:
    """Undo a multiplication by an odd factor, modulo 2**32."""
    return number * pow(factor, -1, 1 << 32) & _MASK


def _rotated(number: int, bits: int) -> int:
    """Rotate 32 bits to the right."""
    return (number >> bits | number << (32 - bits)) & _MASK

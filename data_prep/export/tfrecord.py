"""TFRecord files of ``tf.train.Example`` messages, without TensorFlow.

A record is the length of its data (8 bytes, little-endian), a checksum of these 8 bytes, the data,
and a checksum of the data. A checksum is CRC-32C, rotated right by 15 bits and increased by a
constant, so that it differs from the checksum of data that hold checksums
(https://www.tensorflow.org/tutorials/load_data/tfrecord). The data are a message of protocol
buffers (https://protobuf.dev/programming-guides/encoding): ``Example`` holds ``Features``, a map of
names to ``Feature``, which is a list of bytes, of floats or of integers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

import crc32c

Value: TypeAlias = bytes | str | int | float
_MASK = 0xA282EAD8
_BITS = (1 << 64) - 1


def record(data: bytes) -> bytes:
    """Return a record as it stands in a file.

    Parameters
    ----------
    data : bytes
        Data of the record, such as `example` returns.
    """
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def example(features: Mapping[str, Value]) -> bytes:
    """Return a message ``tf.train.Example`` whose features have one value each.

    Parameters
    ----------
    features : mapping of str to bytes, str, int or float
        Text becomes UTF-8, an integer 64 bits, a float 32 bits.

    Examples
    --------
    >>> example({"label": 2}).hex()
    '0a100a0e0a056c6162656c12051a030a0102'
    """
    entries = (
        _field(1, _field(1, name.encode()) + _field(2, _feature(value)))
        for name, value in sorted(features.items())
    )
    return _field(1, b"".join(entries))


def _feature(value: Value) -> bytes:
    """Return a ``Feature``: bytes_list is its field 1, float_list 2, int64_list 3."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return _field(1, _field(1, value))
    if isinstance(value, float):
        return _field(2, _field(1, struct.pack("<f", value)))
    # A negative number is written as the unsigned 64-bit number with the same bits.
    return _field(3, _field(1, _varint(value & _BITS)))


def _field(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes, a message, or packed numbers."""
    return b"".join((_varint(number << 3 | 2), _varint(len(content)), content))


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _checksum(data: bytes) -> bytes:
    crc = crc32c.crc32c(data)
    turned = (crc >> 15 | crc << 17) + _MASK
    return struct.pack("<I", turned & 0xFFFFFFFF)

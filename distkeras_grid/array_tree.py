"""Trees of plain values and arrays as one buffer: what a run keeps of itself.

The buffer is::

    magic    8 bytes  b"DKGTREE1"
    length   uint64   bytes of the header
    header            MessagePack: the tree, and the type and shape of each array
    arrays            in their order, C order, each from the next multiple of 64 bytes on

All numbers are little-endian. In the tree an array is its number. Nothing is pickled. Places are
not written but counted, so no array can lie outside the buffer, and reading allocates no memory for
them: arrays are views of the buffer. What a tree must hold is for its reader to check.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import UNREADABLE, DataError

#: A tree packed into one buffer, shape ``(bytes,)``.
Packed: TypeAlias = NDArray[np.uint8]

MAGIC = b"DKGTREE1"
# As `distkeras_grid.rows` aligns memory, so that arrays are used where they lie.
_ALIGNMENT = 64
_START = struct.Struct("<8sQ")
# MessagePack's own integers end at 64 bits, and the state of a random generator has more.
_ARRAY, _INTEGER = 1, 2
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_TYPES = {
    str(np.dtype(kind)): np.dtype(kind)
    for kind in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
        ml_dtypes.bfloat16,
    )
}


class _ArrayHeader(msgspec.Struct, frozen=True, array_like=True):
    """Type and shape of an array."""

    dtype: str
    shape: tuple[int, ...]


class _Header(msgspec.Struct, frozen=True, array_like=True):
    # Read when its arrays can be made, whose places are then known
    tree: msgspec.Raw
    arrays: tuple[_ArrayHeader, ...]


def pack(tree: Mapping[str, Any]) -> Packed:
    """Copy a tree into one new buffer.

    `tree`: dicts with strings as keys, lists, numbers, strings, booleans, None, and arrays of
    numbers. An array that occurs twice is stored once.
    """
    arrays: list[NDArray[Any]] = []
    plain = msgspec.Raw(msgspec.msgpack.encode(_plain(tree, arrays)))
    described = tuple(_ArrayHeader(str(array.dtype), array.shape) for array in arrays)
    header = msgspec.msgpack.encode(_Header(plain, described))
    places = list(_places(described, len(header)))
    data = np.zeros(places[-1].stop if places else _START.size + len(header), np.uint8)
    data[: _START.size] = np.frombuffer(_START.pack(MAGIC, len(header)), np.uint8)
    data[_START.size : _START.size + len(header)] = np.frombuffer(header, np.uint8)
    for array, place in zip(arrays, places, strict=True):
        np.copyto(data[place].view(array.dtype).reshape(array.shape), array)
    return data


def unpack(data: Packed) -> dict[str, Any]:
    """Return the tree of a buffer; its arrays are views of the buffer.

    `data`: what `pack` returned, shape ``(bytes,)``, ``uint8``.
    """
    try:
        magic, length = _START.unpack_from(data.data)
        if magic != MAGIC or length > data.size - _START.size:
            raise DataError("This is not a packed tree: its first bytes are of something else.")
        body = data[_START.size : _START.size + length].data
        header = msgspec.msgpack.decode(body, type=_Header)
        read = partial(_read, _arrays(data, header.arrays, length))
        return msgspec.msgpack.decode(header.tree, type=dict[str, Any], ext_hook=read)
    except (struct.error, *UNREADABLE) as error:
        raise DataError(f"This is not a packed tree: {error}.") from error


def _arrays(data: Packed, described: Sequence[_ArrayHeader], length: int) -> list[NDArray[Any]]:
    for each in described:
        if each.dtype not in _TYPES or any(count < 0 for count in each.shape):
            raise DataError(f"A packed tree has no arrays such as {each.dtype}{each.shape}.")
    places = list(_places(described, length))
    end = places[-1].stop if places else _START.size + length
    if end != data.size:
        raise DataError(f"A packed tree of {end} bytes is expected. Received: {data.size} bytes.")
    return [
        data[place].view(_TYPES[each.dtype]).reshape(each.shape)
        for each, place in zip(described, places, strict=True)
    ]


def _places(described: Sequence[_ArrayHeader], length: int) -> Iterator[slice]:
    """Yield the bytes of each array."""
    end = _START.size + length
    for each in described:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + math.prod(each.shape) * _TYPES[each.dtype].itemsize
        yield slice(start, end)


def _plain(tree: Any, arrays: list[NDArray[Any]]) -> Any:
    """Return a tree without arrays and large integers; its arrays are added to `arrays`."""
    if isinstance(tree, np.ndarray):
        return msgspec.msgpack.Ext(_ARRAY, struct.pack("<I", _number(tree, arrays)))
    if isinstance(tree, int) and not _SMALLEST <= tree <= _LARGEST:
        digits = tree.to_bytes(tree.bit_length() // 8 + 1, "little", signed=True)
        return msgspec.msgpack.Ext(_INTEGER, digits)
    if isinstance(tree, Mapping) and all(isinstance(name, str) for name in tree):
        return {name: _plain(part, arrays) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(part, arrays) for part in tree]
    if isinstance(tree, float):
        # NumPy's float64 is one, too, which msgspec does not know.
        return float(tree)
    if tree is None or isinstance(tree, bool | int | str):
        return tree
    raise DataError(f"A tree has plain values and arrays. Received: {tree!r:.80}.")


def _number(array: NDArray[Any], arrays: list[NDArray[Any]]) -> int:
    if str(array.dtype) not in _TYPES:
        raise DataError(f"A tree has arrays of numbers. Received: one of type {array.dtype}.")
    known = next((number for number, each in enumerate(arrays) if each is array), None)
    if known is None:
        arrays.append(array)
        return len(arrays) - 1
    return known


def _read(arrays: Sequence[NDArray[Any]], code: int, data: memoryview) -> Any:
    """Return the array or the large integer whose place this is."""
    if code == _INTEGER:
        return int.from_bytes(data, "little", signed=True)
    if code != _ARRAY or len(data) != 4:
        raise DataError(f"A packed tree has no values of kind {code} in {len(data)} bytes.")
    (number,) = struct.unpack("<I", data)
    if number >= len(arrays):
        raise DataError(f"A packed tree of {len(arrays)} arrays has no array {number}.")
    return arrays[number]


def as_array(_: type, value: Any) -> Any:
    """Let `msgspec.convert` take an array of a tree for a field that is one; its ``dec_hook``."""
    if not isinstance(value, np.ndarray):
        raise ValueError(f"an array is expected. Received: {value!r:.80}")
    return value

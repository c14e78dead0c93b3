"""Bytes that nobody wrote: valid ones, changed at random, for everything that is read from outside.

What reads them may return a value or raise one of its own errors. Anything else is a crash. Each
input follows from the seed and its number, so one that crashes can be made again.
"""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from distkeras_grid.array_tree import pack, unpack

#: Seconds after which reading one input counts as a hang.
SLOW = 5.0
#: Bytes that reading may allocate for each byte of the input, and beside that.
PER_BYTE, BESIDE = 400, 1 << 20

BYTES = (b"\x00", b"\xff", b"\x7f", b"\x80", b'"', b"{", b"[", b"]", b"\\u0000", b"\xc1", b"\xdf")
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, -(2**63), 1e308, -0.0, 5e-324),
    *("", "\x00", "../../home", "'; drop", "a" * 5000, "NaN", "ﬀ", "\u202e", "/", "file:///etc"),
    *([], {}, [[]], {"": None}, [0] * 1000, [None, "a", 1.5]),
)


@dataclass(frozen=True)
class Target:
    """Something that reads bytes."""

    name: str
    seeds: Sequence[bytes]  # Valid inputs
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]  # What it may raise
    codec: str | None = None  # One of `CODECS`: values within the inputs are changed, too
    trusted: bool = False  # Whether the sender may say how much memory it needs


class CrashError(Exception):
    """An input made its reader do what it must not."""


def inputs(target: Target, seed: int = 0) -> Iterator[bytes]:
    number = 0
    while True:
        yield _input(target, random.Random(f"{target.name} {seed} {number}"))
        number += 1


def check(target: Target, data: bytes, *, memory: bool = False) -> bool:
    """Read an input; return whether it was taken.

    Raises
    ------
    CrashError
        If reading raises another error, takes too long, or allocates too much.
    """
    began = monotonic()
    memory = memory and not target.trusted
    if memory:
        tracemalloc.start()
    try:
        target.read(data)
        taken = True
    except target.errors:
        taken = False
    except Exception as error:
        raise CrashError(f"{target.name}: {type(error).__name__} {error} for {data!r}") from error
    finally:
        peak = tracemalloc.get_traced_memory()[1] if memory else 0
        tracemalloc.stop()
    if monotonic() - began > SLOW:
        raise CrashError(f"{target.name}: {monotonic() - began:.1f} s for {data!r}")
    if peak > PER_BYTE * len(data) + BESIDE:
        raise CrashError(f"{target.name}: {peak} bytes of memory for {data!r}")
    return taken


def _input(target: Target, random: random.Random) -> bytes:
    data = random.choice(target.seeds)
    if target.codec is not None and random.random() < 0.6:
        return _with_other_values(data, target.codec, random)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        data = _with_other_bytes(data, target.seeds, random)
    return data


def _with_other_bytes(data: bytes, seeds: Sequence[bytes], random: random.Random) -> bytes:
    place, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    match random.randrange(7):
        case 0 if data:
            place = min(place, len(data) - 1)
            flipped = data[place] ^ 1 << random.randrange(8)
            return data[:place] + bytes([flipped]) + data[place + 1 :]
        case 1:
            return data[:place] + random.choice(BYTES) + data[place + 1 :]
        case 2:
            return data[:place] + random.randbytes(random.randrange(1, 9)) + data[place:]
        case 3:
            return data[:place] + data[end:]
        case 4:
            return data[:end] + data[place:]
        case 5:
            other = random.choice(seeds)
            return data[:place] + other[random.randrange(len(other) + 1) :]
        case _:
            # Deeper than any reader follows.
            return data[:place] + random.choice((b"[", b"\x91", b'{"a":')) * 3000 + data[place:]


def _with_other_values(data: bytes, codec: str, random: random.Random) -> bytes:
    read, write = CODECS[codec]
    tree = read(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        tree = _changed(tree, random)
    return write(tree)


def _packed(tree: Any) -> bytes:
    # A packed tree is a dict, with integers of any size.
    return pack(tree if isinstance(tree, dict) else {"tree": tree}).tobytes()


#: How the values within an input are read, and written again.
CODECS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "json": (json.loads, lambda tree: json.dumps(tree).encode()),
    "msgpack": (partial(msgspec.msgpack.decode, strict=False), msgspec.msgpack.encode),
    "tree": (lambda data: unpack(np.frombuffer(data, np.uint8)), _packed),
}


def _other_array(array: np.ndarray[Any, Any], random: random.Random) -> Any:
    """Return an array of another type or shape, or with a value that is not finite."""
    changed = array.astype(np.float64).ravel()
    if changed.size and random.random() < 0.5:
        changed[random.randrange(changed.size)] = random.choice((np.nan, np.inf, -1e300))
        with np.errstate(over="ignore", invalid="ignore"):
            return changed.astype(array.dtype).reshape(array.shape)
    return random.choice(
        (changed, changed[1:], changed.reshape(-1, 1), np.ones(array.shape, np.int8))
    )


def _changed(tree: Any, random: random.Random) -> Any:
    """Return a tree in which one value, or one name, is another."""
    if isinstance(tree, np.ndarray) and random.random() < 0.8:
        return _other_array(tree, random)
    if not isinstance(tree, dict | list) or not tree or random.random() < 0.15:
        return random.choice((*VALUES, tree, [tree], {"a": tree}))
    if isinstance(tree, list):
        place = random.randrange(len(tree))
        changed = [_changed(tree[place], random)] if random.random() < 0.9 else []
        return tree[:place] + changed * random.choice((1, 1, 1, 2)) + tree[place + 1 :]
    name = random.choice(list(tree))
    others = {key: value for key, value in tree.items() if key != name}
    match random.randrange(8):
        case 0:
            return others
        case 1:
            return {**others, random.choice(("", "__class__", "x" * 300, name + "_")): tree[name]}
        case _:
            return {**others, name: _changed(tree[name], random)}

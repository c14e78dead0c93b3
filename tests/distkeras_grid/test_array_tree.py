import struct
import tracemalloc

import ml_dtypes
import msgspec
import numpy as np
import pytest

from distkeras_grid.array_tree import MAGIC, pack, unpack
from distkeras_grid.errors import DataError

TREE = {
    "numbers": [1, -2.5, None, True, "ä", float("inf"), 2**127, -(2**80)],
    "seats": [{"state": np.arange(6, dtype=np.float32).reshape(2, 3)}, {}],
    "scalar": np.array(7, np.int64),
    "none": np.empty((0, 4), np.float16),
    "half": np.ones(3, ml_dtypes.bfloat16),
}


def same(one, other):
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, list):
        for part, found in zip(one, other, strict=True):
            same(part, found)
    else:
        assert type(one) is type(other)
        assert one == other


def test_a_tree_comes_back_as_it_was():
    same(TREE, unpack(pack(TREE)))


def test_an_array_that_occurs_twice_is_stored_once():
    array = np.zeros(1000)
    assert pack({"a": array, "b": array}).size < pack({"a": array}).size + 100


def test_arrays_are_views_of_the_buffer():
    data = pack(TREE)
    assert np.shares_memory(unpack(data)["seats"][0]["state"], data)


@pytest.mark.parametrize(
    "tree",
    [
        {"object": object()},
        {"objects": np.array([object()])},
        {"text": np.array(["a"])},
        {1: 2},
        {"set": {1}},
        {"number": np.float32(1)},
        {"bytes": b"a"},
    ],
)
def test_what_is_no_tree_is_refused(tree):
    with pytest.raises(DataError):
        pack(tree)


@pytest.mark.parametrize("length", [0, 7, 8, 15, 16, 40, -1, -64, -1000])
def test_a_part_of_a_tree_or_more_than_one_is_refused(length):
    data = pack({**TREE, "long": np.zeros(1000)})
    for other in (data[:length], np.concatenate([data, np.zeros(1 + abs(length), np.uint8)])):
        with pytest.raises(DataError):
            unpack(other)


def forged(header, arrays=b""):
    body = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    return np.frombuffer(struct.pack("<8sQ", MAGIC, len(body)) + body + arrays, np.uint8)


@pytest.mark.parametrize(
    "header",
    [
        [{}, [["float32", [2**40, 2**40]]]],
        [{}, [["float32", [-1, -1]]]],
        [{}, [["object", [0]]]],
        [{}, [["float32", ["1"]]]],
        [{"a": msgspec.msgpack.Ext(1, struct.pack("<I", 3))}, []],
        [{"a": msgspec.msgpack.Ext(1, b"\0")}, []],
        [{"a": msgspec.msgpack.Ext(9, b"\0\0\0\0")}, []],
        [{}],
        [[], []],
        {},
        b"\xdd\xff\xff\xff\xff",
        b"\x92\x80\xdd\xff\xff\xff\xff",
        b"\x92\x81\xa1a" + b"\x91" * 100_000,
        b"\x92\x81\xa1a\xdd\xff\xff\xff\xff",
    ],
)
def test_a_forged_header_is_refused_and_costs_no_memory(header):
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            unpack(forged(header))
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()

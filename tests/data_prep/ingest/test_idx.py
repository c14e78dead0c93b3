from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from data_prep.ingest.idx import idx_shape, iter_idx, read_idx
from distkeras_grid.errors import DataError

ITEMS = np.arange(7 * 2 * 3, dtype=np.uint8).reshape(7, 2, 3)


def idx_of(array):
    head = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


@pytest.fixture(params=["plain", "gz"])
def file(request):
    content = idx_of(ITEMS)
    return gzip.compress(content) if request.param == "gz" else content


def test_the_whole_file(file):
    assert idx_shape(file, "images") == (7, 2, 3)
    np.testing.assert_array_equal(read_idx(file, "images"), ITEMS)


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 7, 3), (2, 5, 1), (5, 7, 100), (3, 3, 2)])
def test_a_part_in_pieces(file, start, stop, step):
    pieces = list(iter_idx(file, "images", start, stop, step))
    assert all(len(piece) <= step for piece in pieces)
    joined = np.concatenate([ITEMS[:0], *pieces])
    np.testing.assert_array_equal(joined, ITEMS[start:stop])


def test_a_file_without_items():
    assert read_idx(idx_of(ITEMS[:0]), "images").shape == (0, 2, 3)


def test_a_file_that_is_cut_short_is_named():
    with pytest.raises(DataError, match=r"t10k\.gz is cut short: its header says 7 items of 6"):
        read_idx(idx_of(ITEMS)[:-1], "t10k.gz")
    with pytest.raises(DataError, match=r"t10k\.gz is damaged"):
        read_idx(gzip.compress(idx_of(ITEMS))[:-12], "t10k.gz")


def test_a_part_beyond_the_end_of_a_cut_file_is_an_error():
    with pytest.raises(DataError, match="cut short"):
        list(iter_idx(idx_of(ITEMS)[:20], "images", 5, 6, 1))


def test_a_file_longer_than_its_header_says():
    with pytest.raises(DataError, match="longer than the 7 items"):
        read_idx(idx_of(ITEMS) + b"x", "images")


def test_bytes_that_were_changed_fail_the_checksum():
    content = bytearray(gzip.compress(idx_of(ITEMS), compresslevel=0))
    content[-20] ^= 1
    with pytest.raises(DataError, match="damaged"):
        read_idx(bytes(content), "images")


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x08", b"\x89PNG\r\n", b"\0\0\x0d\x01\0\0\0\1abcd", b"\0\0\x08\xff", b"\0\0\x08\0"],
)
def test_what_is_no_idx_file_of_bytes(content):
    with pytest.raises(DataError, match=r"images is not an IDX file of uint8: it begins with b"):
        idx_shape(content, "images")

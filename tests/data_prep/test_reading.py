"""How a task gets the bytes of an image, and what it says when it does not."""

from __future__ import annotations

import os

import pytest

from data_prep.reading import FILE, SPARK, WEBHDFS, Opening, local_path
from distkeras_grid.errors import ImageError
from distkeras_grid.webhdfs.addresses import Address


def test_a_file_is_read_by_its_path_whatever_its_name(tmp_path):
    path = tmp_path / "0 [x] %20 ü.png"
    path.write_bytes(b"\x00\x01")
    for uri in (f"file:{path}", f"file://{path}"):
        assert local_path(uri) == str(path)
        assert Opening(FILE).read(uri) == b"\x00\x01"


@pytest.mark.parametrize("kind", ["gone", "folder", "forbidden"])
def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path, kind):
    path = tmp_path / "0.png"
    if kind == "folder":
        path.mkdir()
    elif kind == "forbidden":
        path.write_bytes(b"x")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    with pytest.raises(ImageError, match=r"0\.png"):
        Opening(FILE).read(f"file:{path}")


def test_a_namenode_that_does_not_answer_is_an_error_of_the_image():
    opening = Opening(WEBHDFS, Address(("http://127.0.0.1:9",), "nobody"))
    with pytest.raises(ImageError, match=r"0\.png"):
        opening.read("hdfs://namenode:8020/raw/0.png")


def test_only_contents_in_rows_of_spark_are_bounded_by_2_gb():
    assert Opening(SPARK, why="a test").most_bytes < 2 << 30 < Opening(FILE).most_bytes
    assert "a test" in Opening(SPARK, why="a test").describe()

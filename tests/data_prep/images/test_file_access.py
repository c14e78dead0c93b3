"""How a task gets the bytes of an image, and what it says when it does not."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from functools import partial
from io import BufferedReader

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.images import file_access
from data_prep.images.file_access import (
    FILE,
    SPARK,
    WEBHDFS,
    FileOpener,
    OpenFile,
    local_path,
    why_no_webhdfs,
)
from distkeras_grid.errors import ImageError, UnreadableImageError
from distkeras_grid.webhdfs import failures
from distkeras_grid.webhdfs.addresses import Address
from tests.data_prep.bad_sector import open_bad_sector
from tests.data_prep.counting import Counting
from tests.distkeras_grid.webhdfs.loopback import Fault, loopback

PAUSES = failures.PAUSES
URI = "hdfs://namenode:8020/raw/0.tif"


@pytest.fixture
def hdfs(monkeypatch):
    """An HDFS with one large file, and with failures that are told at once."""
    # A DataNode that may be back soon is asked again for some seconds.
    monkeypatch.setattr(failures, "PAUSES", ())
    monkeypatch.setattr(file_access, "IN_MEMORY_BYTES", 1000)
    with loopback() as state:
        state.directories.add("/raw")
        state.files["/raw/0.tif"] = bytes(3000)
        yield state


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A local file that is read where it lies."""
    monkeypatch.setattr(file_access, "IN_MEMORY_BYTES", 1000)
    path = tmp_path / "0.tif"
    path.write_bytes(bytes(range(250)) * 8)
    return path


def test_a_file_is_read_by_its_path_whatever_its_name(tmp_path):
    path = tmp_path / "0 [x] %20 ü.png"
    path.write_bytes(b"\x00\x01")
    for uri in (f"file:{path}", f"file://{path}"):
        assert local_path(uri) == str(path)
        with FileOpener(FILE).open(uri) as content:
            assert content.stream.read() == b"\x00\x01"


@pytest.mark.parametrize("kind", ["gone", "folder", "forbidden"])
def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path, monkeypatch, kind):
    path = tmp_path / "0.png"
    if kind == "folder":
        path.mkdir()
    elif kind == "forbidden":
        # Permissions of the file would not do: root may read everything.
        def forbidden(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

        monkeypatch.setattr(file_access, "open_local", forbidden)
    with pytest.raises(UnreadableImageError, match=r"0\.png"):
        FileOpener(FILE).open(f"file:{path}")


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_large_file_with_a_bad_sector_is_an_error_with_its_name(is_followed):
    content = OpenFile(open_bad_sector(), name="/raw/0.tif")
    if is_followed:
        content.follow()
    with pytest.raises(UnreadableImageError, match=r"0\.tif"):
        content.sha256()


def test_a_large_file_on_hdfs_that_lost_a_block_is_an_error_with_its_name(hdfs):
    with FileOpener(WEBHDFS, hdfs.address).open(URI) as content:
        hdfs.faults["OPEN data"] = Fault("BlockMissingException", times=-1)
        with pytest.raises(UnreadableImageError, match=r"0\.tif"):
            content.sha256()


def test_a_file_on_hdfs_that_grows_is_an_error_with_its_name(hdfs):
    status = {"type": "FILE", "length": 900, "modificationTime": 1, "permission": "644"}
    told = {"FileStatus": {**status, "owner": "ada", "group": "lab", "pathSuffix": ""}}
    hdfs.faults["GETFILESTATUS"] = Fault("answer", body=json.dumps(told).encode())
    with pytest.raises(UnreadableImageError, match=r"0\.tif"):
        FileOpener(WEBHDFS, hdfs.address).open(URI)


def test_a_namenode_that_does_not_answer_is_an_error_of_the_image():
    opening = FileOpener(WEBHDFS, Address(("http://127.0.0.1:9",), "nobody"))
    with pytest.raises(ImageError, match=r"0\.png"):
        opening.open("hdfs://namenode:8020/raw/0.png")


def test_tasks_read_from_hdfs_themselves_where_they_can(hdfs):
    assert why_no_webhdfs(hdfs.address, "/raw", None) == ""
    assert why_no_webhdfs(hdfs.address, "/raw", "/raw/0.tif") == ""
    assert "OPEN data" in hdfs.asked
    # This file cannot be read; others may be, and the report names it.
    hdfs.faults["OPEN"] = Fault("AccessControlException", times=-1)
    assert why_no_webhdfs(hdfs.address, "/raw", "/raw/0.tif") == ""


@pytest.mark.parametrize("server", ["url", "datanode"])
def test_nodes_that_cannot_reach_hdfs_say_why(hdfs, server):
    setattr(hdfs, server, "http://127.0.0.1:9")
    assert why_no_webhdfs(hdfs.address, "/raw", "/raw/0.tif")


@pytest.mark.parametrize("kind", ["page", "AccessControlException"])
def test_a_namenode_that_answers_otherwise_is_a_reason_too(hdfs, kind):
    """All images would be left out, one by one, where Spark can read them."""
    hdfs.faults["GETFILESTATUS"] = Fault(kind, times=-1)
    assert why_no_webhdfs(hdfs.address, "/raw", None)


def test_nodes_that_get_no_answer_in_time_say_so(hdfs, monkeypatch):
    monkeypatch.setattr(file_access, "TASK_SECONDS", 0.3)
    # Each try fails, and the next one comes soon.
    monkeypatch.setattr(failures, "PAUSES", PAUSES)
    hdfs.faults["OPEN data"] = Fault("page", times=-1)
    assert "0.3 s" in why_no_webhdfs(hdfs.address, "/raw", "/raw/0.tif")


@pytest.mark.full
@pytest.mark.spark
def test_a_question_to_a_task(spark):
    address = Address(("http://127.0.0.1:9",), "nobody")
    assert file_access._in_task(spark, partial(why_no_webhdfs, address, "/raw", None))


def test_only_contents_in_rows_of_spark_are_bounded_by_2_gb():
    assert FileOpener(SPARK, why="a test").most_bytes < 2 << 30 < FileOpener(FILE).most_bytes
    assert "a test" in FileOpener(SPARK, why="a test").describe()


def test_a_large_file_is_read_where_it_lies(large):
    with FileOpener(FILE).open(f"file:{large}") as content:
        assert content.stream.fileno() > 0
        assert content.sha256() == hashlib.sha256(large.read_bytes()).hexdigest()
        content.stream.seek(700)
        assert content.stream.read(3) == bytes([200, 201, 202])
        assert not content.is_changed
        large.write_bytes(bytes(1024))
        os.utime(large, ns=(1, 1))
        assert content.is_changed
    large.unlink()
    assert content.is_changed


def test_a_large_file_has_a_version_and_bytes_that_are_held_have_none(large, monkeypatch):
    def version():
        with FileOpener(FILE).open(f"file:{large}") as content:
            return content.version

    first = version()
    assert first == version() != ""
    os.utime(large, ns=(1, 1))
    assert version() not in (first, "")
    monkeypatch.setattr(file_access, "IN_MEMORY_BYTES", 2000)
    assert version() == ""


def test_a_file_that_is_replaced_while_it_is_opened_has_changed(large, monkeypatch):
    """Its bytes would be those of the old file, and its version that of the new one."""
    new = large.with_name("new")
    new.write_bytes(large.read_bytes())
    fstat = os.fstat

    def replaced(descriptor):
        if new.exists():
            new.rename(large)
        return fstat(descriptor)

    monkeypatch.setattr(file_access.os, "fstat", replaced)
    with FileOpener(FILE).open(f"file:{large}") as content:
        assert content.is_changed


def test_a_large_file_on_hdfs_that_is_replaced_while_it_is_opened_has_changed(hdfs, monkeypatch):
    """Its length would be that of the old file, and its version that of the new one."""
    connection = file_access.connection_to(hdfs.address)
    status = connection.status

    def replaced(path):
        found = status(path)
        hdfs.files["/raw/0.tif"] = bytes(4000)
        return found

    monkeypatch.setattr(connection, "status", replaced)
    with FileOpener(WEBHDFS, hdfs.address).open(URI) as content:
        assert content.is_changed


def test_ranges_of_a_large_file_on_hdfs(hdfs, monkeypatch):
    monkeypatch.setattr(file_access, "RANGE_BYTES", 4096)
    content = hdfs.files["/raw/0.tif"] = np.random.default_rng(0).bytes(300_000)
    with FileOpener(WEBHDFS, hdfs.address).open(URI) as found:
        assert hdfs.asked.count("OPEN data") == 0
        for start, count in ((299_990, 20), (0, 4), (123_456, 70_000), (300_000, 5)):
            found.stream.seek(start)
            assert found.stream.read(count) == content[start : start + count]
        assert found.sha256() == hashlib.sha256(content).hexdigest()
        assert not found.is_changed
        hdfs.files["/raw/0.tif"] = content[:-1]
        assert found.is_changed


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 20_000)), max_size=8))
def test_the_digest_of_a_followed_file_is_that_of_all_its_bytes(reads):
    content = np.random.default_rng(0).bytes(33_333)
    found = OpenFile(BufferedReader(Counting(content)))
    found.follow()
    for start, count in reads:
        found.stream.seek(start)
        assert found.stream.read(count) == content[start : start + count]
    for _ in range(2):
        assert found.sha256() == hashlib.sha256(content).hexdigest()
    assert found.stream.read(5) == content[:5]


def test_a_followed_file_keeps_its_path(large):
    with FileOpener(FILE).open(f"file:{large}") as content:
        content.follow()
        # Libraries of microscopes open it by this name.
        assert content.stream.name == str(large)
    assert content.stream.closed

"""What users call, but for transfers, on loopback."""

from __future__ import annotations

import pytest

from distkeras_grid.errors import ConfigurationError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.operations import list_directory, remove
from tests.distkeras_grid.webhdfs.loopback import Loopback


@pytest.fixture
def filled(hdfs: Loopback) -> Loopback:
    hdfs.files |= {"/raw/a": b"1", "/raw/b": b"2", "/raw/more/c": b"3"}
    hdfs.directories |= {"/raw", "/raw/more", "/empty"}
    return hdfs


def test_files_are_deleted_and_no_others(filled: Loopback) -> None:
    remove(["/raw/a", "/raw/more/c"], url=filled.url)
    assert filled.files == {"/raw/b": b"2"}


def test_a_directory_is_deleted_with_all_in_it_on_demand_only(filled: Loopback) -> None:
    for path in ("/raw", "/empty"):
        with pytest.raises(StorageError):
            remove([path], url=filled.url)
    assert len(filled.files) == 3
    remove(["/raw/more", "/empty"], recursive=True, url=filled.url)
    assert set(filled.files) == {"/raw/a", "/raw/b"}
    assert filled.directories == {"/", "/raw"}


def test_nothing_is_deleted_where_a_path_does_not_exist(filled: Loopback) -> None:
    with pytest.raises(PathNotFoundError):
        remove(["/raw/a", "/raw/nothing"], recursive=True, url=filled.url)
    assert "/raw/a" in filled.files


@pytest.mark.parametrize("path", ["/", "hdfs:///", "//", "/raw/..", "/raw/../."])
def test_the_root_is_never_deleted(filled: Loopback, path: str) -> None:
    with pytest.raises(ConfigurationError):
        remove(["/raw/a", path], recursive=True, url=filled.url)
    assert len(filled.files) == 3
    assert "DELETE" not in filled.asked


def test_a_directory_and_a_file_are_listed(hdfs: Loopback) -> None:
    hdfs.files |= {"/raw/b": b"1", "/raw/a": b"23"}
    hdfs.directories.add("/raw")
    assert [(each.name, each.size) for each in list_directory("/raw", url=hdfs.url)] == [
        ("a", 2),
        ("b", 1),
    ]
    assert [each.path for each in list_directory("/raw/b", url=hdfs.url)] == ["/raw/b"]
    assert [each.name for each in list_directory("/", url=hdfs.url)] == ["raw"]
    with pytest.raises(PathNotFoundError):
        list_directory("/nothing", url=hdfs.url)

from __future__ import annotations

import pytest

from distkeras_grid.errors import ConfigurationError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.directories import make_directories, remove
from tests.distkeras_grid.webhdfs.loopback import Loopback


@pytest.fixture
def filled(hdfs: Loopback) -> Loopback:
    hdfs.files |= {"/raw/a": b"1", "/raw/b": b"2", "/raw/more/c": b"3"}
    hdfs.directories |= {"/raw", "/raw/more", "/empty"}
    return hdfs


def test_directories_are_made_with_those_above(hdfs: Loopback) -> None:
    for _ in range(2):
        make_directories(["/raw/a", "hdfs:///raw/b"], url=hdfs.url)
    assert hdfs.directories == {"/", "/raw", "/raw/a", "/raw/b"}


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

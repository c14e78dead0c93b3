from __future__ import annotations

import pytest

from distkeras_grid.errors import ConfigurationError, PathNotFoundError
from distkeras_grid.webhdfs.listing import list_directory
from tests.distkeras_grid.webhdfs.loopback import Loopback


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


def test_a_path_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        list_directory("raw", url="http://localhost:1")

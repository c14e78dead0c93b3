from __future__ import annotations

import pytest

from distkeras_grid.errors import PathNotFoundError
from distkeras_grid.webhdfs.responses import Summary
from distkeras_grid.webhdfs.usage import disk_usage
from tests.distkeras_grid.webhdfs.loopback import Loopback


@pytest.fixture
def filled(hdfs: Loopback) -> Loopback:
    hdfs.files |= {"/tiles/a/1": b"1234", "/tiles/a/b/2": b"56", "/tiles/3": b"7"}
    hdfs.directories |= {"/tiles", "/tiles/a", "/tiles/a/b"}
    return hdfs


def test_a_directory_is_measured_with_all_below_it(filled: Loopback) -> None:
    total, entries = disk_usage("hdfs:///tiles", url=filled.url)
    assert total == Summary("/tiles", 7, 21, 3, 3, None)
    assert entries == [
        Summary("/tiles/3", 1, 3, 1, 0, None),
        Summary("/tiles/a", 6, 18, 2, 2, None),
    ]


def test_a_file_has_no_entries(filled: Loopback) -> None:
    assert disk_usage("/tiles/3", url=filled.url) == (Summary("/tiles/3", 1, 3, 1, 0, None), [])


def test_a_quota_is_told(filled: Loopback) -> None:
    filled.space_quota = 100
    assert disk_usage("/tiles", url=filled.url)[0].space_quota == 100


def test_what_does_not_exist_is_not_measured(filled: Loopback) -> None:
    with pytest.raises(PathNotFoundError):
        disk_usage("/nothing", url=filled.url)

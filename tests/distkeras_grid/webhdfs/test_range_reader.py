from __future__ import annotations

import pytest

from distkeras_grid.errors import PathNotFoundError
from distkeras_grid.webhdfs.range_reader import read_file
from tests.distkeras_grid.webhdfs.loopback import Loopback


def test_a_file_is_read_whole(hdfs: Loopback) -> None:
    hdfs.files |= {"/tiles/a": b"12345"}
    assert read_file("/tiles/a", url=hdfs.url) == b"12345"
    with pytest.raises(PathNotFoundError):
        read_file("/tiles/b", url=hdfs.url)

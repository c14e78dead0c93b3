"""Fixtures of the tests of data_prep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from data_prep.images import file_access
from data_prep.on_the_fly import column
from tests.distkeras_grid.webhdfs.loopback import closed_at_end


@pytest.fixture(autouse=True)
def _no_connection_is_kept() -> Iterator[None]:
    """Close the connections to HDFS that a process keeps, as its end would."""
    with closed_at_end(vars(column)):
        yield
    column._connection.cache_clear()
    for connection in file_access._CONNECTIONS.values():
        connection.close()
    file_access._CONNECTIONS.clear()

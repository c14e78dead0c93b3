"""Fixtures of the tests of data_prep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from data_prep import lazy, reading
from tests.distkeras_grid.webhdfs.loopback import closed_at_end


@pytest.fixture(autouse=True)
def _no_connection_is_kept() -> Iterator[None]:
    """Close the connections to HDFS that a process keeps, as its end would."""
    with closed_at_end(vars(lazy)):
        yield
    lazy._connection.cache_clear()
    for connection in reading._CONNECTIONS.values():
        connection.close()
    reading._CONNECTIONS.clear()

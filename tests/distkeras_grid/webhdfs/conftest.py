from __future__ import annotations

from collections.abc import Iterator

import pytest

from distkeras_grid.webhdfs import connection, failures
from tests.distkeras_grid.webhdfs.loopback import Loopback, loopback


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """A NameNode and a DataNode on loopback; tries follow at once."""
    monkeypatch.setattr(failures, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(connection, "TIMEOUTS", (2.0, 2.0))
    with loopback() as state:
        yield state

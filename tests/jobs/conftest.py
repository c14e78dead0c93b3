"""A Spark cluster for the jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster, standalone_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone master with two workers of one core each."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running

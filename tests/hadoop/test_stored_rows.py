"""Rows without a fixed order, stored on a real HDFS; executors of a standalone cluster die."""

from __future__ import annotations

from pathlib import Path

import pytest
from hdfs import InsecureClient

from tests.cluster import Cluster
from tests.faults.test_matrix import ROWS, run
from tests.hadoop.conftest import Grid

pytestmark = [pytest.mark.full, pytest.mark.hadoop]

EPOCHS = 60


@pytest.mark.promise(
    "executors: killed, with rows of a shuffle, on HDFS without checkpoints",
    "The rows are stored in the user's home directory for the run; exact.",
)
@pytest.mark.cluster
@pytest.mark.tensorflow
def test_they_are_in_the_home_directory_until_the_run_ends(
    cluster: Cluster, grid: Grid, client: InsecureClient, project: Path, tmp_path: Path
) -> None:
    settings = {"fault": [1, 0], "shuffled": True, "epochs": EPOCHS, "file_system": grid.hdfs}
    result = run(cluster, project, tmp_path, **settings)
    assert result["error"] is None
    assert result["weights"] == [EPOCHS] * ROWS
    folder = result["stored_rows"]["folder"]
    assert folder.startswith(f"{grid.hdfs}/user/root/.distkeras_grid/rows/rows-")
    assert result["stored_rows"]["bytes"] > 0
    assert client.list("/user/root/.distkeras_grid/rows") == []

"""`ConvolutionSplit` on two executors of a standalone cluster, whose device dies in the middle."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cluster import driver_environment
from tests.faults.split_job import ROWS

pytestmark = [pytest.mark.full, pytest.mark.faults, pytest.mark.cluster, pytest.mark.tensorflow]

EPOCHS = 20


@pytest.mark.parametrize("disturbed", [False, True])
@pytest.mark.promise(
    "device of `ConvolutionSplit`: killed",
    "The others compute its part; the weights are those of `fit` up to rounding.",
)
def test_a_killed_device_costs_nothing_but_its_help(cluster, project, tmp_path, disturbed):
    settings = json.dumps({"epochs": EPOCHS, "disturbed": disturbed})
    command = [sys.executable, "-m", "tests.faults.split_job", cluster.url, str(tmp_path), settings]
    ended = subprocess.run(
        command,
        check=False,
        cwd=project,
        env=driver_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["largest_difference"] < 1e-3
    assert found["samples"] == ROWS * EPOCHS
    # One attempt of the master trained all of it.
    assert found["attempts"] == 1
    assert (found["killed"] > 0) == disturbed
    assert any("Device 1 is lost" in line for line in found["told"]) == disturbed

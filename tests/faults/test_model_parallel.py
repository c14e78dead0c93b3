"""Model parallelism on two executors of a standalone cluster; a device dies in the middle."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cluster import driver_environment
from tests.faults.divided_job import EPOCHS, ROWS

pytestmark = [pytest.mark.full, pytest.mark.faults, pytest.mark.cluster, pytest.mark.tensorflow]


@pytest.mark.parametrize("disturbed", [False, True])
@pytest.mark.promise(
    "device of `ConvolutionSplit`: killed",
    "The others compute its part; the weights are those of `fit` up to rounding.",
)
def test_a_killed_device_costs_nothing_but_its_help(cluster, project, tmp_path, disturbed):
    found = result("split", cluster, project, tmp_path, disturbed)
    assert found["largest_difference"] < 1e-3
    assert found["samples"] == ROWS * EPOCHS
    # One attempt of the master trained all of it.
    assert found["attempts"] == 1
    assert (found["killed"] > 0) == disturbed
    assert any("Device 1 is lost" in line for line in found["told"]) == disturbed


@pytest.mark.parametrize("disturbed", [False, True])
@pytest.mark.promise(
    "stage of `PlacedLayers`: killed",
    "All stages go on from the last window; every row counts once, and with plain SGD the weights "
    "are those of `fit` up to rounding.",
)
def test_after_a_killed_stage_all_go_on_from_the_last_window(cluster, project, tmp_path, disturbed):
    found = result("placed", cluster, project, tmp_path, disturbed)
    assert found["largest_difference"] < 1e-3
    assert found["samples"] == ROWS * EPOCHS
    assert found["attempts"] == 1 + disturbed
    assert (found["killed"] > 0) == disturbed


@pytest.mark.parametrize("disturbed", [False, True])
@pytest.mark.promise(
    "tower of `Towers`: killed",
    "All towers go on from the last window; every row counts once, and with plain SGD the weights "
    "are those of `fit` up to rounding.",
)
def test_after_a_killed_tower_all_go_on_from_the_last_window(cluster, project, tmp_path, disturbed):
    found = result("towers", cluster, project, tmp_path, disturbed)
    assert found["largest_difference"] < 1e-3
    assert found["samples"] == ROWS * EPOCHS
    assert found["attempts"] == 1 + disturbed
    assert (found["killed"] > 0) == disturbed


def result(kind, cluster, project, folder, disturbed):
    """What a driver of its own found."""
    settings = json.dumps({"kind": kind, "disturbed": disturbed})
    command = [sys.executable, "-m", "tests.faults.divided_job", cluster.url, str(folder), settings]
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
    return json.loads((folder / "result.json").read_text())

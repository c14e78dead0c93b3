"""Model parallelism on two executors of a standalone cluster; a task dies in the middle."""

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
    "The master computes its part; the weights are those of `fit` up to rounding.",
)
def test_a_killed_device_costs_nothing_but_its_help(cluster, project, tmp_path, disturbed):
    found = result("split", cluster, project, tmp_path, "others" if disturbed else "nobody")
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
    found = result("placed", cluster, project, tmp_path, "others" if disturbed else "nobody")
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
    found = result("towers", cluster, project, tmp_path, "others" if disturbed else "nobody")
    assert found["largest_difference"] < 1e-3
    assert found["samples"] == ROWS * EPOCHS
    assert found["attempts"] == 1 + disturbed
    assert (found["killed"] > 0) == disturbed


@pytest.mark.parametrize("kind", ["plain_split", "whole", "placed", "towers"])
@pytest.mark.promise(
    "master of `ConvolutionSplit`, `PlacedLayers` or `Towers`: killed",
    "Spark starts it again, and all go on from the last window; every row counts once, and with "
    "plain SGD the weights are those of `fit` up to rounding.",
)
def test_after_a_killed_master_all_go_on_from_the_last_window(cluster, project, tmp_path, kind):
    found = result(kind, cluster, project, tmp_path, "master")
    assert found["largest_difference"] < 1e-3
    assert found["samples"] == ROWS * EPOCHS
    assert (found["killed"], found["attempts"]) == (1, 2)
    if kind == "whole":
        # The devices have ended, so the next attempt measures nothing.
        assert sum("Dividing does not pay: " in line for line in found["told"]) == 1


def result(kind, cluster, project, folder, struck):
    """What a driver of its own found."""
    settings = json.dumps({"kind": kind, "struck": struck})
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

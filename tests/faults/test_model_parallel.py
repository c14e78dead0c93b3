"""Model parallelism on two executors of a standalone cluster; a task dies in the middle."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cluster import driver_environment
from tests.faults.divided_job import EPOCHS, ROWS

pytestmark = [pytest.mark.full, pytest.mark.faults, pytest.mark.cluster, pytest.mark.tensorflow]


# The others end with whoever is lost, so that either is enough; "whole" has no others.
CASES = [("split", "others"), ("placed", "others"), ("towers", "master"), ("whole", "master")]


@pytest.mark.parametrize(("kind", "struck"), CASES)
@pytest.mark.promise(
    "a task of `ConvolutionSplit`, `PlacedLayers` or `Towers`: killed",
    "All tasks are started again, and go on from the last window; every row counts once, and the "
    "weights are those of an undisturbed run: of `ConvolutionSplit` up to rounding, else bit for "
    "bit.",
)
def test_after_a_killed_task_all_go_on_from_the_last_window(
    cluster, project, tmp_path, kind, struck
):
    found = result(kind, cluster, project, tmp_path, struck)
    assert found["largest_difference"] <= (0 if kind in ("placed", "towers") else 1e-3)
    assert found["samples"] == ROWS * EPOCHS
    assert found["killed"] > 0
    assert found["attempts"] == 2


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

"""Model parallelism on two executors of a standalone cluster; a task dies in the middle."""

from __future__ import annotations

import json

import pytest

from tests.faults.counting import end, start_driver
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
    end(start_driver(project, "divided_job", cluster.url, tmp_path, kind, struck))
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["largest_difference"] <= (0 if kind in ("placed", "towers") else 1e-3)
    assert found["samples"] == ROWS * EPOCHS
    assert found["killed"] > 0
    assert found["attempts"] == 2

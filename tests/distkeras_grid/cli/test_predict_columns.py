"""Which feature columns ``predict`` takes when it is told none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from distkeras_grid.cli.predict import recorded_features

FEATURES = [{"name": "image", "shape": [8, 8, 3]}, {"name": "age"}]


def storage(run):
    files = {"hdfs:///runs/7/run.json": run}
    return SimpleNamespace(exists=files.__contains__, read_text=files.__getitem__)


@pytest.mark.parametrize(
    "run", [{"features": FEATURES}, {"spec": {"data": {"features": FEATURES}}}]
)
def test_those_that_the_run_of_the_model_recorded(run):
    assert recorded_features(storage(json.dumps(run)), "hdfs:///runs/7/model.keras") == [
        "image",
        "age",
    ]


@pytest.mark.parametrize("run", ["", "[]", "{}", '{"features": 3}', '{"spec": {}}'])
def test_a_file_that_is_no_run_tells_nothing(run):
    assert recorded_features(storage(run), "hdfs:///runs/7/model.keras") is None


def test_a_model_that_lies_in_no_run_tells_nothing():
    assert recorded_features(storage("{}"), "hdfs:///best.keras") is None
    assert recorded_features(storage("{}"), "best.keras") is None

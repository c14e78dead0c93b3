"""Which columns ``predict`` and ``evaluate`` take when they are told none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from distkeras_grid.cli.run_metadata import model_file, recorded_columns, recorded_predictions
from distkeras_grid.errors import ConfigurationError
from tests.specs import make_spec

FEATURES = ({"name": "image", "shape": [8, 8, 3]}, {"name": "age"})
SPEC = make_spec(features=FEATURES, labels=({"name": "kind"},))
NOTHING = ([], [])


def storage(content, path="hdfs:///runs/7/run.json"):
    files = {path: content}
    return SimpleNamespace(exists=files.__contains__, read_text=files.__getitem__)


def test_those_that_the_run_of_the_model_recorded():
    run = json.dumps({"spec": SPEC.to_json()})
    found = recorded_columns(storage(run), "hdfs:///runs/7/model.keras")
    assert found == (["image", "age"], ["kind"])


@pytest.mark.parametrize("run", ["", "[]", "{}", '{"features": 3}'])
def test_a_file_that_is_no_run_tells_nothing(run):
    assert recorded_columns(storage(run), "hdfs:///runs/7/model.keras") == NOTHING


@pytest.mark.parametrize(
    "spec",
    [
        *({}, 3, None, {"data": 3}, {"data": {"features": FEATURES, "labels": ["kind"]}}),
        # A later release, and columns that have no name.
        {**SPEC.to_json(), "colour": "red"},
        SPEC.change(features=({"shape": [8]},)).to_json(),
    ],
)
def test_a_specification_that_cannot_be_read_is_no_run_without_columns(spec):
    files = storage(json.dumps({"spec": spec}))
    with pytest.raises(ConfigurationError) as raised:
        recorded_columns(files, "hdfs:///runs/7/model.keras")
    assert ".." not in str(raised.value)
    assert "Received: 'name'" not in str(raised.value)
    assert recorded_columns(files, "hdfs:///runs/7/model.keras", named=True) == NOTHING


def test_a_model_that_lies_in_no_run_tells_nothing():
    assert recorded_columns(storage("{}"), "hdfs:///best.keras") == NOTHING
    assert recorded_columns(storage("{}"), "best.keras") == NOTHING


def test_the_folder_of_a_run_has_its_model():
    assert model_file("runs/7") == "runs/7/model.keras"
    assert model_file("best.keras") == "best.keras"


def test_a_model_of_keras_2_is_refused_with_the_line_that_converts_it():
    with pytest.raises(ConfigurationError, match=r"load_model\('m.h5'\).save\('m.keras'\)"):
        model_file("m.h5")


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"prediction": "p", "labels": ["kind"]}, {"prediction": "p", "label": "kind"}),
        ({"prediction": ["p", "q"], "labels": ["kind", "age"]}, {}),
        ({"prediction": "p"}, {"prediction": "p"}),
        ([], {}),
    ],
)
def test_predictions_say_which_columns_they_are(told, found):
    path = "hdfs:///predictions/_predictions.json"
    for data in ("hdfs:///predictions", "hdfs:///predictions/"):
        assert recorded_predictions(storage(json.dumps(told), path), data) == found
    assert recorded_predictions(storage("{}", path), "hdfs:///other") == {}

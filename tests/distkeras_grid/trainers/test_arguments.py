"""Arguments that workers would trip over, refused on the driver."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules.parameters import checked_whole
from distkeras_grid.trainers.arguments import (
    check_backend,
    check_tensorflow,
    checked_class_weight,
)


@pytest.mark.parametrize("seed", [2**63, -1, np.int64(-1), 1.5, "3"])
def test_a_seed_is_a_whole_number_from_0_on(seed):
    with pytest.raises(ConfigurationError, match=r"seed must be .*Received"):
        checked_whole("seed", seed, least=0)


def test_a_seed_of_numpy_fits_json():
    assert json.dumps(checked_whole("seed", np.uint32(5), least=0)) == "5"


@pytest.mark.parametrize(
    ("class_weight", "match"),
    [
        ([1.0, 2.0], r"\[1.0, 2.0\]"),
        ("balance", "'balance'"),
        ({"dark": 2.0}, "class 'dark'"),
        ({1.5: 2.0}, "class 1.5"),
        ({math.nan: 2.0}, "class nan"),
        ({1: "2"}, "'2' for class 1"),
        ({1: -0.5}, "-0.5 for class 1"),
        ({1: math.nan}, "nan for class 1"),
        ({1: math.inf}, "inf for class 1"),
    ],
)
def test_class_weights_are_numbers_by_numbers(class_weight, match):
    with pytest.raises(ConfigurationError, match=match):
        checked_class_weight(class_weight)


def test_class_weights_of_numpy_and_pandas_become_plain():
    found = checked_class_weight({np.int64(0): np.float32(0.5), 1.0: 2})
    assert json.dumps(found) == '{"0": 0.5, "1": 2.0}'
    assert checked_class_weight(None) is None
    assert checked_class_weight("balanced") == "balanced"


@pytest.mark.tensorflow
def test_another_backend_is_refused_with_what_to_set(monkeypatch):
    import keras

    check_backend()
    check_tensorflow("Towers")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    check_backend()
    with pytest.raises(ConfigurationError, match=r"Towers .*'jax'.*KERAS_BACKEND=tensorflow"):
        check_tensorflow("Towers")
    monkeypatch.setattr(keras.backend, "backend", lambda: "openvino")
    with pytest.raises(ConfigurationError, match=r"'jax'.*'openvino'"):
        check_backend()

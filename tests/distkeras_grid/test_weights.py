import json

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.weights import Variable, WeightLayout

LAYOUT = WeightLayout(
    trainable=(Variable("a/kernel", (2, 3)), Variable("a/scale", ())),
    statistics=(Variable("bn/mean", (4,)),),
)


def test_sizes():
    assert (LAYOUT.trainable_size, LAYOUT.statistics_size, LAYOUT.size) == (7, 4, 11)


def test_flatten_then_unflatten_gives_the_arrays_back():
    arrays = [np.arange(6.0).reshape(2, 3), np.float64(7), np.arange(4.0)]
    vector = LAYOUT.flatten(arrays)
    assert vector.dtype == np.float32
    for array, view in zip(arrays, LAYOUT.unflatten(vector), strict=True):
        np.testing.assert_array_equal(array, view)


def test_unflatten_returns_views():
    vector = np.zeros(11, np.float32)
    for view in LAYOUT.unflatten(vector):
        view[...] = 1
    assert vector.sum() == 11


def test_wrong_arrays_are_refused():
    with pytest.raises(ConfigurationError, match="3 variables, 1 arrays"):
        LAYOUT.flatten([np.zeros((2, 3))])
    with pytest.raises(ConfigurationError, match=r"a/kernel has shape \(2, 3\), \(3, 2\)"):
        LAYOUT.flatten([np.zeros((3, 2)), np.zeros(()), np.zeros(4)])
    with pytest.raises(ConfigurationError, match=r"\(11,\), \(10,\)"):
        LAYOUT.unflatten(np.zeros(10, np.float32))


def test_json_round_trip():
    assert WeightLayout.from_json(json.loads(json.dumps(LAYOUT.to_json()))) == LAYOUT


@pytest.mark.parametrize("data", [{}, {"trainable": [{}], "statistics": []}, {"trainable": 3}])
def test_other_json_is_refused(data):
    with pytest.raises(ConfigurationError):
        WeightLayout.from_json(data)

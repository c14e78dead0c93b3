"""Settings, thresholds and clipping of deep gradient compression; invariants are beside."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import Accumulator, DeepGradientCompression
from distkeras_grid.rules.gradient_compression import largest
from distkeras_grid.weights import Variable, WeightLayout

SQUARE = WeightLayout((Variable("kernel", (2, 2)),))


def test_the_sparsity_warms_up_as_published():
    warming = DeepGradientCompression()
    found = [warming.sparsity_of(epoch) for epoch in range(1, 7)]
    assert found == [0.75, 0.9375, 0.984375, 0.99609375, 0.999, 0.999]


def test_a_lower_sparsity_is_not_warmed_up_beyond_itself():
    assert [DeepGradientCompression(0.5).sparsity_of(epoch) for epoch in (1, 9)] == [0.5, 0.5]
    assert DeepGradientCompression(warm_up_epochs=0).sparsity_of(1) == 0.999


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"sparsity": 1.0}, "sparsity must be at least 0 and below 1. Received: 1.0"),
        ({"sparsity": float("nan")}, "sparsity"),
        ({"momentum": 1}, "momentum must be at least 0 and below 1. Received: 1"),
        (
            {"warm_up_epochs": 1.5},
            "warm_up_epochs must be a whole number of at least 0. Received: 1.5",
        ),
        ({"warm_up_epochs": -1}, "warm_up_epochs"),
    ],
)
def test_values_out_of_range_are_refused(wrong, match):
    with pytest.raises(ConfigurationError, match=match):
        DeepGradientCompression(**wrong)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_where_all_are_the_same_size_no_more_than_asked_for_are_found(value):
    assert len(set(largest(np.full(100_000, value, np.float32), 100).tolist())) == 100


def test_a_sample_that_misses_the_large_ones_is_not_trusted():
    values = np.full(50_000, 0.1, np.float32)
    values[1:101] = np.arange(1, 101)
    assert sorted(largest(values, 100).tolist()) == list(range(1, 101))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_goes_as_it_is_and_is_not_kept(value):
    keeping = Accumulator(DeepGradientCompression(), SQUARE)
    wrong = np.array([1, value, 0, 1], np.float32)
    keeping.compress(wrong, 1)
    np.testing.assert_array_equal(wrong, [1, value, 0, 1])
    assert not keeping.residual.any()


def test_numbers_of_numpy_become_plain():
    """They are told in the history, and saved with a simulated run."""
    given = DeepGradientCompression(np.float32(0.5), np.float32(0.25), np.int64(2))
    assert json.loads(json.dumps(asdict(given))) == asdict(DeepGradientCompression(0.5, 0.25, 2))

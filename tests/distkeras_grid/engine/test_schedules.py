"""A late attempt: its optimizer begins as new, the learning rate's schedule goes on."""

import numpy as np
import pytest

from distkeras_grid.engine.keras_model import model_to_bytes
from distkeras_grid.engine.model_loader import load_engine
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rows import RowBlock
from tests.engines import engine_of, keras

pytestmark = pytest.mark.tensorflow

STEPS, BATCH, DONE = 6, 8, 1875


X = np.random.default_rng(3).normal(size=(STEPS, BATCH, 5)).astype(np.float32)
BLOCK = RowBlock((X,), ((X[..., 0] > 0).astype(np.int64),))


def model(optimizer):
    keras.utils.set_random_seed(4)
    net = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(6, "tanh", name="first"),
            keras.layers.Dense(2, name="second"),
        ]
    )
    net.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


def engine(optimizer, jit=False):
    return engine_of(model(optimizer), block_shape=(STEPS, BATCH), jit=jit)


def falling(after):
    """A rate that falls to a tenth after so many steps."""
    return keras.optimizers.schedules.PiecewiseConstantDecay([after], [0.1, 0.01])


def sgd(rate):
    return keras.optimizers.SGD(rate, momentum=0.9)


def adam(rate):
    return keras.optimizers.Adam(rate)


def scaled(rate):
    return keras.optimizers.LossScaleOptimizer(adam(rate))


def several(rate):
    chosen = keras.optimizers.OptimizerMap(adam(rate), {"first/.*": sgd(rate)})
    return keras.optimizers.MultiOptimizer(chosen)


def accumulating(rate):
    return keras.optimizers.Adam(rate, gradient_accumulation_steps=2)


OPTIMIZERS = [sgd, adam, scaled, several, accumulating]


def trained(worker):
    after = np.empty(worker.layout.size, np.float32)
    return worker.run(worker.weights(), [BLOCK], after), after


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_schedule_of_a_late_attempt_goes_on(optimizer, jit):
    """Falling after 1877 steps, seen from step 1875 on, is falling after 2, and nothing else is."""
    late = engine(optimizer(falling(DONE + 2)), jit=jit)
    late.set_schedule_offset(7)
    late.set_schedule_offset(DONE)
    fresh = engine(optimizer(falling(2)), jit=jit)
    (result, weights), (expected, expected_weights) = trained(late), trained(fresh)
    assert result == expected
    np.testing.assert_array_equal(weights, expected_weights)
    _, unmoved = trained(engine(optimizer(falling(DONE + 2)), jit=jit))
    assert np.abs(unmoved - weights).max() > 1e-3


def test_an_engine_that_is_kept_begins_the_next_run_at_the_schedules_start():
    archive = model_to_bytes(model(adam(falling(2))))
    late = load_engine(archive)
    _, expected = trained(late)
    late.set_schedule_offset(DONE)
    again = load_engine(archive)
    assert again is late
    np.testing.assert_array_equal(trained(again)[1], expected)


@pytest.mark.parametrize("optimizer", [lambda: several(0.1), lambda: sgd(falling(2))])
def test_rates_of_several_optimizers_and_of_schedules_are_not_set_from_outside(optimizer):
    with pytest.raises(ConfigurationError):
        engine(optimizer()).set_learning_rate(0.01)

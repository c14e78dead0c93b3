"""The engine decides by the time of the model as it is, and can go back to it."""

from __future__ import annotations

import time
from contextlib import contextmanager

import numpy as np
import pytest

from distkeras_grid.engine.tensorflow import TensorFlowEngine
from distkeras_grid.model_parallel import devices as devices_module
from distkeras_grid.model_parallel.arithmetic import PartialConvolution
from distkeras_grid.model_parallel.convolution_finder import find_convolutions
from distkeras_grid.model_parallel.engine import DividedEngine
from distkeras_grid.rows import RowBlock, aligned_empty
from tests.distkeras_grid.model_parallel.helpers import devices_of, plan_of

pytestmark = pytest.mark.tensorflow

BATCH, SLOW_SECONDS = 8, 0.05


def network():
    import keras

    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((8, 8, 3)),
        keras.layers.Conv2D(6, 3, name="a"),
        keras.layers.Conv2D(4, 3, name="b"),
        keras.layers.Flatten(),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def block_of(steps):
    random, x = np.random.default_rng(1), aligned_empty((steps, BATCH, 8, 8, 3))
    x[:] = random.random(x.shape, np.float32)
    return RowBlock((x,), (random.random((steps, BATCH, 2), np.float32),))


class SlowPart(PartialConvolution):
    """A convolution outside of Keras' graph, which takes less."""

    def output(self):
        time.sleep(SLOW_SECONDS)
        return super().output()


@contextmanager
def divided(monkeypatch, which, steps):
    """An engine, its devices, and the plans that it told."""
    monkeypatch.setattr(devices_module, "PartialConvolution", SlowPart)
    model, told = network(), []
    layers = list(find_convolutions(model).layers.values())
    with devices_of([described for _, described in layers], 2, BATCH, which) as devices:
        devices.apply_plan(plan_of(a=(2, 4), b=(1, 3)))
        shape = {"block_shape": (steps, BATCH)}
        yield DividedEngine(model, layers, devices, told.append, **shape), devices, told


def trained(engine, block):
    after = np.empty(engine.layout.size, np.float32)
    engine.run(engine.weights(), [block], after)
    return after


@pytest.mark.parametrize("steps", [1, 6])
def test_a_model_that_is_faster_as_it_is_is_trained_as_it_is(monkeypatch, steps):
    block, plain = block_of(steps), TensorFlowEngine(network(), block_shape=(steps, BATCH))
    with divided(monkeypatch, "auto", steps) as (engine, devices, told):
        seconds = engine.warm_up(block)
        assert [plan.shares for plan in told] == [{}]
        # Both convolutions are Keras' own.
        whole, slow = told[0].batch
        assert whole == pytest.approx(seconds / steps)
        assert whole < 2 * SLOW_SECONDS < slow
        moved = devices.group.moved
        assert trained(engine, block).tobytes() == trained(plain, block).tobytes()
        assert devices.group.moved == moved


def test_a_model_that_is_faster_as_it_is_is_divided_if_all_layers_are_asked_for(monkeypatch):
    block, plain = block_of(2), TensorFlowEngine(network())
    with divided(monkeypatch, "all", 2) as (engine, devices, told):
        engine.warm_up(block)
        assert set(told[0].shares) == {"a", "b"}
        assert told[0].batch[0] < 2 * SLOW_SECONDS < told[0].batch[1]
        moved = devices.group.moved
        expected = trained(plain, block)
        assert np.abs(trained(engine, block) - expected).max() < 1e-5 * np.abs(expected).max()
        assert devices.group.moved > moved

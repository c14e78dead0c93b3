"""What every engine promises about windows, where several devices compute one model.

The other devices are threads of this process. The trainers of such models use no rule whose workers
step with the gradients of others, so only `WindowContract` applies.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from distkeras_grid.engine.keras_model import model_to_bytes
from tests.contracts.test_engines import (
    BATCH,
    WIDTH,
    ModelWindowContract,
    block_of,
    compiled,
    model_of,
)
from tests.distkeras_grid.model_parallel.engines import placed_engine, towers_engine
from tests.distkeras_grid.model_parallel.helpers import devices_of, plan_of

# The tests of `model_parallel` compare the same engines with one process in `make test`.
pytestmark = [pytest.mark.tensorflow, pytest.mark.full]


class DividedContract(ModelWindowContract):
    """The devices of an engine live as long as the test."""

    tolerance = 1e-6

    @pytest.fixture(autouse=True)
    def _devices_end_with_the_test(self):
        with ExitStack() as self.stack:
            yield


class TestPlaced(DividedContract):
    """Three stages, two of them on other devices."""

    def make(self, momentum=0.0, rate=0.1):
        model = model_of(momentum, rate)
        return self.stack.enter_context(placed_engine(model, ("first", "second"), 2))


class TestTowers(DividedContract):
    """Two towers, one of them on another device."""

    def make(self, momentum=0.0, rate=0.1):
        import keras

        from distkeras_grid.model_parallel.tower_model import stack

        keras.utils.set_random_seed(7)
        layers = keras.layers
        towers = []
        for name in ("left", "right"):
            inner = [layers.Dense(4, "tanh"), layers.BatchNormalization(), layers.Dropout(0.25)]
            tower = [keras.Input((WIDTH,)), *inner, layers.Dense(3)]
            towers.append(keras.Sequential(tower, name=name))
        head = keras.Sequential([keras.Input((6,)), layers.Dense(2)], name="head")
        model = compiled(stack(towers, head), momentum, rate)
        return self.stack.enter_context(towers_engine(model_to_bytes(model), ("left", "right")))


class TestConvolutions(DividedContract):
    """A convolution of which each of two devices computes a half."""

    def make(self, momentum=0.0, rate=0.1):
        import keras

        from distkeras_grid.model_parallel.convolution_finder import find_convolutions
        from distkeras_grid.model_parallel.device_group import GroupEngine
        from distkeras_grid.model_parallel.engine import DividedEngine

        keras.utils.set_random_seed(7)
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((WIDTH,)),
                layers.Reshape((WIDTH, 1, 1)),
                layers.Conv2D(4, (2, 1), activation="tanh", name="divided"),
                layers.BatchNormalization(),
                layers.Dropout(0.25),
                layers.Flatten(),
                layers.Dense(2),
            ]
        )
        compiled(model, momentum, rate)
        found = list(find_convolutions(model).layers.values())
        devices = self.stack.enter_context(
            devices_of([described for _, described in found], 2, BATCH, "all")
        )
        devices.apply_plan(plan_of(divided=(2, 2)))
        engine = GroupEngine(DividedEngine(model, found, devices, lambda _: None), devices.group)
        engine.warm_up(block_of())
        return engine

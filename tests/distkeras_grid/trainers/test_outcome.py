"""What training leaves beside the weights, as ``fit`` leaves it."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid import DOWNPOUR, AveragingTrainer, Cluster, SingleTrainer

pytestmark = pytest.mark.tensorflow

ROWS, WIDTH = 96, 6


def counting():
    import keras

    class Counting(keras.layers.Layer):
        """Counts its calls."""

        def build(self, shape):  # noqa: ARG002
            self.calls = self.add_weight(shape=(), dtype="int32", trainable=False, name="calls")

        def call(self, x):
            self.calls.assign_add(1)
            return x

    return Counting


def build(*, ema=False, counts=None, constraint=None, rate=0.1):
    import keras

    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            layers.Dense(8, "relu", kernel_constraint=constraint),
            *([counts()] if counts else []),
            layers.Dense(3, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(rate, use_ema=ema, ema_momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    return model


def arrays():
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, WIDTH)).astype(np.float32), rng.integers(0, 3, ROWS)


def simulated(model, kind=SingleTrainer, workers=1, objects=None, **options):
    options = {"batch_size": 16, "jit": False, "progress": False, **options}
    trainer = kind(model, num_workers=workers, custom_objects=objects, **options)
    cluster = Cluster(workers=workers, batch_seconds=0.01)
    return trainer.simulate(arrays(), cluster, shuffle=False, seed=1).model


def fitted(model, epochs=1):
    model.fit(*arrays(), batch_size=16, epochs=epochs, shuffle=False, verbose=0)
    return model


def assert_same(one, other):
    for a, b in zip(one.variables, other.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=a.path)


def test_several_workers_leave_the_mean_of_their_averages_and_the_counters_of_the_first():
    counts = counting()
    raw = simulated(build(), AveragingTrainer, 2)
    trained = simulated(
        build(ema=True, counts=counts), AveragingTrainer, 2, objects={"Counting": counts}
    )
    kernels = [np.asarray(each.layers[0].kernel) for each in (build(), raw, trained)]
    # Averages lag behind.
    assert np.linalg.norm(kernels[2] - kernels[0]) < np.linalg.norm(kernels[1] - kernels[0])
    assert [int(v.numpy()) for v in trained.variables if v.name == "calls"] == [ROWS / 2 / 16]


def test_one_worker_gives_the_bits_of_fit_that_xla_compiles():
    model = build()
    model.jit_compile = True
    assert_same(simulated(model, num_epoch=2, jit=True), fitted(model, epochs=2))


@pytest.mark.parametrize("kind", [AveragingTrainer, DOWNPOUR])
@pytest.mark.parametrize("constraint", ["non_neg", "unit_norm"])
def test_the_center_obeys_the_constraints(kind, constraint):
    model = simulated(build(constraint=constraint), kind, 2, batch_size=8, num_epoch=3)
    kernel = np.asarray(model.layers[0].kernel)
    if constraint == "non_neg":
        assert kernel.min() >= 0
    else:
        np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1, rtol=1e-6)

"""What travels of a window, against Keras' own optimizers."""

import numpy as np
import pytest

from distkeras_grid.engine.local_optimizers import check_plain_sgd, check_unscaled
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.rows import RowBlock
from distkeras_grid.rules import (
    AdagradRule,
    CommitInfo,
    ElasticMomentumRule,
    LocalSteps,
    apply_reply,
    compute_commit,
)
from tests.engines import engine_of, keras

pytestmark = pytest.mark.tensorflow

STEPS, BATCH = 24, 8


X = np.random.default_rng(3).normal(size=(STEPS, BATCH, 5)).astype(np.float32)
Y = (X[..., 0] > 0).astype(np.int64)


def rows(start, stop):
    return RowBlock((X[start:stop],), (Y[start:stop],))


def model(optimizer, batch_norm=False):
    keras.utils.set_random_seed(4)
    inner = [keras.layers.BatchNormalization()] if batch_norm else []
    net = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(6, "tanh"), *inner, keras.layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer=optimizer, loss=loss)
    return net


def engine(optimizer=None, kind=LocalSteps.GRADIENT, momentum=0.0, **options):
    net = model(optimizer or keras.optimizers.SGD(0.1), **options)
    return engine_of(net, local_steps=kind, momentum=momentum)


def fitted(optimizer, steps=STEPS):
    """Keras' own training on the same batches."""
    net = model(optimizer)
    for batch in zip(X[:steps], Y[:steps], strict=True):
        net.train_on_batch(*batch)
    return net


def train(worker, rule, window):
    """One worker against one center; returns the center and what the worker goes on from."""
    sections = worker.layout.sections
    center = Center(rule, worker.weights(), sections, seats=1)
    before, after, payload = (np.empty_like(center.vector) for _ in range(3))
    center.on_join(0, before)
    for start in range(0, STEPS, window):
        result = worker.run(before, [rows(start, start + window)], after)
        compute_commit(rule, sections, before, after, result.steps, payload)
        center.fold(payload, CommitInfo(0, result.steps, result.samples, 0))
        apply_reply(rule, sections, after, payload, before)
    return center.vector, before


def flat(net):
    return np.concatenate([np.asarray(v).ravel() for v in net.trainable_variables])


def test_the_sum_of_the_gradients_travels_and_steps_are_those_of_plain_sgd():
    """What lies before and after the window agrees with it: x - x0 = -rate A."""
    worker, reference = engine(), fitted(keras.optimizers.SGD(0.1), steps=4)
    before = worker.weights()
    sums = (before - flat(reference)) / 0.1
    after = np.empty_like(before)
    blocks = [rows(0, 3), rows(3, 4)]
    for _ in range(2):  # a second window begins with a new sum
        worker.run(before, blocks, after)
        np.testing.assert_allclose(after, sums, rtol=0, atol=5e-6)
    np.testing.assert_allclose(flat(worker.model), flat(reference), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("jit", [False, True])
def test_the_mean_gradient_of_a_window_is_that_of_its_rows_in_one_batch(jit):
    """Batches of 8, 8, 3 and 8 rows, and an embedding, whose gradients are sparse."""

    def net():
        keras.utils.set_random_seed(4)
        layers = [keras.Input((5,)), keras.layers.Embedding(9, 4), keras.layers.Flatten()]
        found = keras.Sequential([*layers, keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        found.compile(keras.optimizers.SGD(1.0), loss)
        return found

    x = np.random.default_rng(1).integers(0, 9, (27, 5))
    y = x[:, 0] % 2
    parts = [(16, 2, 8), (3, 1, 3), (8, 1, 8)]
    blocks, start = [], 0
    for rows, *shape in parts:
        part = slice(start, start + rows)
        blocks.append(RowBlock((x[part].reshape(*shape, 5),), (y[part].reshape(shape),)))
        start += rows
    worker = engine_of(net(), local_steps=LocalSteps.NONE, block_shape=(2, 8), jit=jit)
    before, after = worker.weights(), np.empty(worker.layout.size, np.float32)
    expected = net()
    expected.train_on_batch(x, y)
    for _ in range(2):  # a second window begins with a new sum
        worker.run(before, blocks, after)
        np.testing.assert_allclose(before - after, flat(expected), rtol=0, atol=1e-6)


def test_statistics_travel_beside_the_gradients():
    worker = engine(batch_norm=True)
    before, after = worker.weights(), np.empty(worker.layout.size, np.float32)
    worker.run(before, [rows(0, 2)], after)
    cut = worker.layout.trainable_size
    held = np.concatenate([np.asarray(v) for v in worker.model.non_trainable_variables])
    np.testing.assert_array_equal(after[cut:], held)
    assert not np.array_equal(before[cut:], after[cut:])


def test_D7_server_adagrad_of_one_worker_is_keras_adagrad():
    center, _ = train(engine(), AdagradRule(rate=0.05), window=1)
    expected = fitted(keras.optimizers.Adagrad(0.05, initial_accumulator_value=0.1, epsilon=1e-7))
    np.testing.assert_allclose(center, flat(expected), rtol=0, atol=5e-7)


@pytest.mark.parametrize("window", [1, 6])
def test_E6_eamsgd_without_force_is_keras_nesterov(window):
    """Keras stores the look-ahead point x + momentum v, so that is what is compared."""
    rule = ElasticMomentumRule(alpha=0.0, momentum=0.9)
    worker = engine(keras.optimizers.SGD(0.05), LocalSteps.LOOK_AHEAD, momentum=0.9)
    _, x = train(worker, rule, window)
    expected = fitted(keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True))
    velocities = [np.asarray(v).ravel() for v in worker.model.optimizer.momentums]
    np.testing.assert_allclose(x + 0.9 * np.concatenate(velocities), flat(expected), atol=1e-6)
    theirs = np.concatenate([np.asarray(v).ravel() for v in expected.optimizer.momentums])
    np.testing.assert_allclose(np.concatenate(velocities), theirs, atol=1e-6)


@pytest.mark.parametrize(
    "local_steps", [LocalSteps.GRADIENT, LocalSteps.NONE, LocalSteps.LOOK_AHEAD]
)
def test_a_train_step_that_applies_nothing_is_refused(local_steps):
    class Idle(keras.Sequential):
        def train_step(self, *arguments):
            *state, (x, _) = arguments  # JAX gives a state and takes it back
            logs = {"loss": keras.ops.mean(x)}
            return (logs, *state) if state else logs

    net = Idle([keras.Input((5,)), keras.layers.Dense(2)])
    net.compile(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ConfigurationError, match="train_step of Idle applied nothing"):
        engine_of(net, local_steps=local_steps).warm_up(rows(0, STEPS))


@pytest.mark.parametrize(
    ("name", "options", "received"),
    [
        ("Adam", {}, "Adam"),
        ("SGD", {"momentum": 0.9}, r"SGD\(momentum=0.9\)"),
        ("SGD", {"weight_decay": 0.01}, r"SGD\(weight_decay=0.01\)"),
        ("SGD", {"use_ema": True}, "use_ema"),
    ],
)
def test_only_plain_sgd_makes_plain_gradients(name, options, received):
    with pytest.raises(ConfigurationError, match=f"GEM .* Received: .*{received}"):
        check_plain_sgd(getattr(keras.optimizers, name)(**options), "GEM")
    check_plain_sgd(keras.optimizers.SGD(0.5, clipnorm=1.0), "GEM")
    wrapped = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    with pytest.raises(ConfigurationError, match="around SGD, as the policy mixed_float16 wants"):
        check_plain_sgd(wrapped, "GEM")


def test_a_scaled_loss_is_refused_where_steps_are_made_outside_of_train_step():
    wrapped = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    with pytest.raises(ConfigurationError, match="Received: LossScaleOptimizer"):
        check_unscaled(wrapped, "SynchronousSGD")
    with pytest.raises(ConfigurationError, match=r"Received: Adam\(loss_scale_factor=2.0\)"):
        check_unscaled(keras.optimizers.Adam(loss_scale_factor=2.0), "SynchronousSGD")
    check_unscaled(keras.optimizers.Adam(clipnorm=1.0), "SynchronousSGD")

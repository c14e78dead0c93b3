import numpy as np
import pytest

from distkeras_grid.engine.keras_model import get_flat_weights
from distkeras_grid.rows import RowBlock, aligned_empty
from tests.engines import assert_equals_fit, engine_of, keras

pytestmark = pytest.mark.tensorflow

STEPS, BATCH = 200, 8
# 199 whole batches and one of 5; windows of 7 leave a shorter last one too.
ROWS = (STEPS - 1) * BATCH + 5
SCALE, OFFSET = 1 / 255, -0.25


def images(shape=(6, 6, 1), rows=ROWS, classes=3):
    rng = np.random.default_rng(7)
    y = rng.integers(0, classes, rows)
    x = rng.integers(0, 200, (rows, *shape), dtype=np.uint8)
    x[np.arange(rows), y % shape[0]] += 50
    return x, y


def negative_sum(_, y_pred):
    return -keras.ops.sum(y_pred)


def as_floats(x):
    return x.astype(np.float32) * np.float32(SCALE) + np.float32(OFFSET)


def mlp():
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(3, "softmax"),
        ]
    )


def cnn():
    layers = keras.layers
    inputs = keras.Input((6, 6, 1))
    x = layers.Conv2D(4, 3, use_bias=False)(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    x = layers.Flatten()(layers.MaxPooling2D()(x))
    x = layers.Dropout(0.3, seed=3)(x)
    return keras.Model(inputs, layers.Dense(3, "softmax")(x))


def subclass():
    class Small(keras.Model):
        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)
            self.units = units
            self.flatten = keras.layers.Flatten()
            self.dense = keras.layers.Dense(units, activation="softmax")

        def call(self, x):
            return self.dense(self.flatten(x))

        def get_config(self):
            return {**super().get_config(), "units": self.units}

    model = Small(3)
    model(np.zeros((1, 6, 6, 1), np.float32))
    return model


def compiled(build, optimizer):
    keras.utils.set_random_seed(11)
    model = build()
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def blocks_of(arrays, start, stop):
    """Cut rows into a block of whole batches and one of the rest."""
    whole = (stop - start) // BATCH
    cuts = [(start, start + whole * BATCH, whole), (start + whole * BATCH, stop, 1)]
    blocks = []
    for i, j, n in cuts:
        if j > i:
            x, y = (a[i:j].reshape(n, -1, *a.shape[1:]) for a in arrays)
            blocks.append(RowBlock((x,), (y,)))
    return blocks


def train(engine, arrays, window=7, epochs=1):
    """Run an engine over all rows as a worker does; return weights and results."""
    before, after = aligned_empty(engine.layout.size), aligned_empty(engine.layout.size)
    before[:] = engine.weights()
    results = []
    for _ in range(epochs):
        for start in range(0, len(arrays[0]), window * BATCH):
            stop = min(start + window * BATCH, len(arrays[0]))
            results.append(engine.run(before, blocks_of(arrays, start, stop), after))
            before, after = after, before
    return before.copy(), results


def fitted(model, arrays, epochs=1):
    x, y = arrays
    model.fit(as_floats(x), y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    return model


def engine_for(model, **options):
    options = {"scaling": ((SCALE, OFFSET),), "block_shape": (7, BATCH), **options}
    return engine_of(model, **options)


@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.full), "adam"])
@pytest.mark.parametrize("build", [mlp, cnn, subclass], ids=["mlp", "cnn", "subclass"])
def test_without_xla_equals_fit(build, optimizer):
    reference = fitted(compiled(build, optimizer), images(), epochs=2)
    engine = engine_for(compiled(build, optimizer), jit=False)
    weights, results = train(engine, images(), epochs=2)
    assert_equals_fit(weights, get_flat_weights(reference))
    assert sum(r.samples for r in results) == 2 * ROWS
    assert sum(r.steps for r in results) == 2 * STEPS == int(reference.optimizer.iterations)
    assert int(engine.model.optimizer.iterations) == 2 * STEPS


def test_a_call_for_each_batch_equals_fit_bit_for_bit():
    """Without a scaling, which `fit` knows nothing of."""
    x, y = images()
    reference = fitted(compiled(cnn, "adam"), (x, y))
    engine = engine_for(compiled(cnn, "adam"), jit=False, scaling=())
    assert np.array_equal(train(engine, (as_floats(x), y))[0], get_flat_weights(reference))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_with_xla_equals_fit(optimizer):
    reference = get_flat_weights(fitted(compiled(mlp, optimizer), images()))
    engine = engine_for(compiled(mlp, optimizer))
    assert engine.jit
    weights, _ = train(engine, images())
    assert np.linalg.norm(weights - reference) <= 1e-6 * np.linalg.norm(reference)


@pytest.mark.parametrize("jit", [False, True])
def test_loss_and_metrics_are_those_of_the_window_alone(jit):
    # A rate of 0 leaves the weights, so the window's means can be had from evaluate.
    engine = engine_for(compiled(mlp, keras.optimizers.SGD(0.0)), jit=jit)
    x, y = images(rows=2 * 7 * BATCH - 3)
    _, results = train(engine, (x, y))
    for result, rows in zip(results, (slice(0, 56), slice(56, None)), strict=True):
        loss, accuracy = engine.model.evaluate(as_floats(x[rows]), y[rows], verbose=0)
        assert result.loss == pytest.approx(loss, rel=1e-5)
        assert result.metrics == {"accuracy": pytest.approx(accuracy, rel=1e-5)}
    assert results[1].samples == 53
    assert results[1].steps == 7


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("jit", [True, False])
def test_memory_of_the_caller_is_neither_written_nor_kept(aligned, jit):
    engine = engine_for(compiled(mlp, "sgd"), jit=jit)
    size = engine.layout.size
    before = aligned_empty(size) if aligned else aligned_empty(size + 1)[1:]
    before[:] = engine.weights()
    after, copy = np.empty(size, np.float32), before.copy()
    engine.run(before, blocks_of(images(), 0, 7 * BATCH), after)
    assert np.array_equal(before, copy)
    assert not np.array_equal(after, before)
    before[:] = np.nan
    assert np.array_equal(engine.weights(), after)


def test_integer_inputs_arrive_as_integers():
    inputs = keras.Input((), dtype="int32")
    weight = keras.layers.Embedding(5, 1, embeddings_initializer="zeros")(inputs)
    model = keras.Model(inputs, weight)
    model.compile(keras.optimizers.SGD(1.0), negative_sum)
    engine = engine_for(model, scaling=())
    assert not engine.jit
    after = np.empty(5, np.float32)
    rows = np.array([[0, 1], [2, 4]])
    engine.run(engine.weights(), [RowBlock((rows,), (rows,))], after)
    assert after.tolist() == [1, 1, 1, 0, 1]


def test_eager_model_runs_eagerly():
    def build():
        model = compiled(mlp, "sgd")
        model.run_eagerly = eager
        return model

    eager = False
    reference, _ = train(engine_for(build(), jit=False), images(rows=40))
    eager = True
    engine = engine_for(build(), jit=True)
    assert not engine.jit
    weights, _ = train(engine, images(rows=40))
    np.testing.assert_allclose(weights, reference, rtol=1e-5, atol=1e-6)

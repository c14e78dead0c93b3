"""Models of several inputs and outputs: the engine's windows against Keras' own ``fit``."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.rows import RowBlock
from tests.engines import assert_equals_fit, engine_of

pytestmark = pytest.mark.tensorflow

STEPS, BATCH, WORDS = 6, 5, 11
ROWS = STEPS * BATCH
SCALE, OFFSET = 1 / 255, -0.25


def build(structure):
    """Pixels and the index of a word in; a kind and a size out."""
    import keras

    keras.utils.set_random_seed(4)
    layers = keras.layers
    pixels = keras.Input((3, 3, 1), name="pixels")
    word = keras.Input((2,), dtype="int32", name="word")
    embedded = layers.Flatten()(layers.Embedding(WORDS, 3)(word))
    joined = layers.Concatenate()([layers.Flatten()(pixels), embedded])
    hidden = layers.Dense(8, "tanh")(joined)
    size = layers.Dense(1, name="size")(hidden)
    kind = layers.Dense(3, "softmax", name="kind")(hidden)
    inputs, outputs = [pixels, word], [size, kind]
    if structure == "dict":
        inputs, outputs = {t.name: t for t in inputs}, {"size": size, "kind": kind}
    return keras.Model(inputs, outputs)


def compiled(structure, settings):
    import keras

    model = build(structure)
    model.compile(keras.optimizers.SGD(0.1), **settings)
    return model


BY_NAME = {
    "loss": {"size": "mse", "kind": "sparse_categorical_crossentropy"},
    "loss_weights": {"size": 0.25, "kind": 2.0},
    "metrics": {"size": ["mae"], "kind": ["accuracy"]},
}
BY_ORDER = {
    "loss": ["mse", "sparse_categorical_crossentropy"],
    "loss_weights": [0.25, 2.0],
    "metrics": [["mae"], ["accuracy"]],
}


def data():
    rng = np.random.default_rng(8)
    pixels = rng.integers(0, 256, (ROWS, 3, 3, 1), dtype=np.uint8)
    word = rng.integers(0, WORDS, (ROWS, 2)).astype(np.int32)
    size = rng.normal(size=(ROWS, 1)).astype(np.float32)
    kind = rng.integers(0, 3, ROWS)
    return {"pixels": pixels, "word": word}, {"size": size, "kind": kind}


def fit(model, steps, weight=None):
    x, y = data()
    rows = slice(steps * BATCH)
    x["pixels"] = x["pixels"].astype(np.float32) * np.float32(SCALE) + np.float32(OFFSET)
    seen = [{name: a[rows] for name, a in arrays.items()} for arrays in (x, y)]
    if isinstance(model.output, list):
        # By name Keras 3.15 takes labels, but not the weights that it makes for each of them.
        seen = [list(arrays.values()) for arrays in seen]
    given = None if weight is None else weight[rows]
    told = model.fit(*seen, sample_weight=given, batch_size=BATCH, shuffle=False, verbose=0)
    return {name: values[-1] for name, values in told.history.items()}


def run(model, steps, weight=None, **options):
    """Run a window; features and labels are in the order of the model's inputs and outputs."""
    from distkeras_grid.feeding.shapes import inputs_of, outputs_of

    def in_blocks(array):
        return array[: steps * BATCH].reshape(steps, BATCH, *array.shape[1:])

    x, y = data()
    inputs = [port.name for port in inputs_of(model)]
    scaling = tuple((SCALE, OFFSET) if name == "pixels" else (1.0, 0.0) for name in inputs)
    engine = engine_of(model, scaling=scaling, **options)
    block = RowBlock(
        tuple(in_blocks(x[name]) for name in inputs),
        tuple(in_blocks(y[port.name]) for port in outputs_of(model)),
        None if weight is None else in_blocks(weight),
    )
    after = np.empty(engine.layout.size, np.float32)
    return after, engine.run(engine.weights(), [block], after)


def flat(model):
    from distkeras_grid.engine.keras_model import get_flat_weights

    return get_flat_weights(model)


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.full), STEPS])
@pytest.mark.parametrize(
    ("structure", "settings"),
    [("list", BY_NAME), ("list", BY_ORDER), ("dict", BY_NAME)],
    ids=["named", "ordered", "dict"],
)
def test_equals_fit(structure, settings, steps):
    reference = compiled(structure, settings)
    told = fit(reference, steps)
    weights, result = run(compiled(structure, settings), steps, jit=False)
    assert_equals_fit(weights, flat(reference))
    assert {"loss": result.loss, **result.metrics} == pytest.approx(told, rel=1e-6)
    assert {"size_mae", "kind_accuracy", "size_loss", "kind_loss"} == set(result.metrics)


def test_a_weight_of_a_row_holds_for_all_outputs_as_in_fit():
    weight = np.random.default_rng(2).uniform(0, 2, ROWS).astype(np.float32)
    settings = {**BY_NAME, "metrics": None, "weighted_metrics": {"size": ["mae"], "kind": []}}
    reference = compiled("list", settings)
    told = fit(reference, STEPS, weight)
    weights, result = run(compiled("list", settings), STEPS, weight, jit=False)
    assert_equals_fit(weights, flat(reference))
    assert {"loss": result.loss, **result.metrics} == pytest.approx(told, rel=1e-6)


def test_with_xla_equals_fit():
    reference = compiled("list", BY_NAME)
    fit(reference, STEPS)
    model = compiled("list", BY_NAME)
    weights, _ = run(model, STEPS, jit=True, block_shape=(STEPS, BATCH))
    assert np.linalg.norm(weights - flat(reference)) <= 1e-6 * np.linalg.norm(flat(reference))

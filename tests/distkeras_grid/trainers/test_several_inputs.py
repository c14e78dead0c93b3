"""Models of several inputs and outputs, from the columns of a DataFrame to predictions."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, LabelError, SchemaError
from distkeras_grid.simulation.cluster import Cluster

pytestmark = pytest.mark.tensorflow

ROWS, WIDTH, KINDS, CODES = 64, 3, 2, 5
# No float32 is that odd: an index that travels as a float is another one.
ODD = (1 << 24) + 1
LOSSES = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
FEATURES = {"code": "place", "numbers": "values"}
LABELS = {"size": "weight", "kind": "sort"}


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(7)
    values = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    place = ODD + random.integers(0, CODES, (ROWS, 1))
    sort = (values.sum(axis=1) > 0).astype(np.int64)
    weight = values[:, 0] + 0.1 * (place[:, 0] - ODD)
    return values, place, sort, weight.astype(np.float32)


@pytest.fixture(scope="module")
def frame(spark, arrays):
    import pyarrow as pa

    values, place, sort, weight = arrays
    table = {
        "values": pa.array(list(values)),
        "place": pa.array(place[:, 0]),
        "sort": pa.array(sort),
        "weight": pa.array(weight),
        "importance": pa.array(np.linspace(0.5, 1.5, ROWS)),
    }
    return spark.createDataFrame(pa.table(table)).cache()


def build(optimizer="sgd"):
    import keras

    keras.utils.set_random_seed(3)
    layers = keras.layers
    numbers = keras.Input((WIDTH,), name="numbers")
    code = keras.Input((1,), dtype="int64", name="code")
    near = layers.Subtract()([code, keras.ops.full_like(code, ODD)])
    embedded = layers.Flatten()(layers.Embedding(CODES, 2)(near))
    hidden = layers.Dense(6, "tanh")(layers.Concatenate()([numbers, embedded]))
    kind = layers.Dense(KINDS, "softmax", name="kind")(hidden)
    size = layers.Dense(1, name="size")(hidden)
    model = keras.Model([numbers, code], [kind, size])
    model.compile(
        optimizer,
        LOSSES,
        loss_weights={"kind": 1.0, "size": 0.5},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )
    return model


def trainer(name, model=None, **arguments):
    import distkeras_grid

    columns = {"features_col": FEATURES, "label_col": LABELS}
    arguments = {"progress": False, "batch_size": 8, "jit": False, **columns, **arguments}
    return getattr(distkeras_grid, name)(model or build(), **arguments)


def weights(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.mark.full
@pytest.mark.spark
def test_a_worker_trains_as_fit_does(frame, arrays):
    values, place, sort, weight = arrays
    expected = build()
    told = expected.fit(
        [values, place], [sort, weight], batch_size=8, epochs=2, shuffle=False, verbose=0
    ).history
    one = trainer("SingleTrainer", num_epoch=2)
    one.train(frame, shuffle=False, seed=1, validation_data=frame)
    np.testing.assert_array_equal(weights(one.model), weights(expected))
    found = one.history.history
    assert {*told, *(f"val_{name}" for name in told), "learning_rate"} == set(found)
    assert found["kind_accuracy"] == pytest.approx(told["kind_accuracy"], rel=1e-5)
    held = expected.evaluate([values, place], [sort, weight], verbose=0, return_dict=True)
    assert {name: found[f"val_{name}"][-1] for name in held} == pytest.approx(held, rel=1e-5)


@pytest.mark.full
@pytest.mark.spark
def test_workers_learn_both_outputs_and_predict_them(frame, arrays):
    import keras

    from distkeras_grid import AccuracyEvaluator, ModelPredictor

    values, place, sort, _ = arrays
    # Which worker's windows an epoch holds differs from run to run. At Adam's own rate, 12 steps
    # move the loss less than that does.
    model = build(keras.optimizers.Adam(0.01))
    many = trainer("ADAG", model, num_workers=2, num_epoch=3, label_col=["sort", "weight"])
    model = many.train(frame, seed=1, sample_weight_col="importance")
    losses = many.history.history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    predicted = ModelPredictor(model, FEATURES, batch_size=10).predict(frame)
    rows = predicted.collect()
    kind, size = model.predict([values, place], verbose=0)
    np.testing.assert_allclose([row.prediction_kind for row in rows], kind, atol=1e-6)
    np.testing.assert_allclose([row.prediction_size for row in rows], size, atol=1e-6)
    accuracy = float((kind.argmax(axis=1) == sort).mean())
    assert AccuracyEvaluator("prediction_kind", "sort").evaluate(predicted) == accuracy


@pytest.mark.spark
@pytest.mark.parametrize(
    ("arguments", "call", "error", "named"),
    [
        ({"features_col": "values"}, {}, ConfigurationError, "'code'"),
        ({"label_col": {"kind": "sort"}}, {}, ConfigurationError, "'size'"),
        ({"label_col": ["sort", "wieght"]}, {}, SchemaError, "'weight'"),
        ({"features_col": ["place", "values"]}, {}, SchemaError, "'numbers'"),
        ({}, {"class_weight": {0: 2.0}}, ConfigurationError, "'kind', 'size'"),
        ({"label_col": ["place", "weight"]}, {}, LabelError, "'place'"),
    ],
)
def test_what_does_not_fit_is_named(frame, arguments, call, error, named):
    with pytest.raises(error, match=named):
        trainer("ADAG", **arguments).train(frame, **call)


def test_an_ensemble_refuses_the_model_before_it_looks_at_data():
    with pytest.raises(ConfigurationError, match="2 inputs"):
        trainer("EnsembleTrainer").train("/no/such/path")


@pytest.mark.full
@pytest.mark.parametrize("by", ["order", "name"])
def test_a_simulated_worker_trains_as_fit_does(arrays, by):
    values, place, sort, weight = arrays
    x, y = [values, place], [sort, weight]
    importance = np.linspace(0.5, 1.5, ROWS).astype(np.float32)
    expected = build()
    expected.fit(x, y, sample_weight=importance, batch_size=8, shuffle=False, verbose=0)
    if by == "name":
        x, y = {"code": place, "numbers": values}, {"size": weight, "kind": sort}
    found = trainer("SingleTrainer").simulate(
        (x, y, importance), Cluster(1, batch_seconds=1.0), shuffle=False, validation_data=(x, y)
    )
    np.testing.assert_array_equal(weights(found.model), weights(expected))
    assert "val_size_mae" in found.history.history

"""Models of several inputs and outputs, from the columns of a DataFrame to predictions."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, LabelError, SchemaError
from distkeras_grid.simulation.cluster import Cluster
from tests.distkeras_grid.trainers.small import weights

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

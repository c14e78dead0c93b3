from functools import reduce

import numpy as np
import pytest

from distkeras_grid import recalibrate
from distkeras_grid.errors import ConfigurationError, EmptyDataError
from distkeras_grid.inference.recalibration import Moments, measure_statistics
from tests.engines import keras

ROWS, WIDTH, UNITS = 50, 3, 4
# A mean far from zero, of which differences of squares would leave little.
X = np.random.default_rng(0).normal(100, 1, size=(ROWS, WIDTH)).astype(np.float32)


def moments(rows):
    mean = rows.mean(axis=0, dtype=float)
    return Moments(len(rows), mean, ((rows - mean) ** 2).sum(axis=0, dtype=float))


def test_moments_of_parts_are_together_those_of_all_rows():
    parts = np.split(X.astype(float), [1, 8, 9, 30])
    found = reduce(Moments.merge, map(moments, parts))
    assert found.rows == ROWS
    np.testing.assert_allclose(found.mean, X.mean(axis=0, dtype=float), rtol=1e-14)
    np.testing.assert_allclose(found.squares / ROWS, X.var(axis=0, dtype=float), rtol=1e-11)


@pytest.fixture
def model():
    keras.utils.set_random_seed(1)
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            layers.Dense(UNITS),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )
    net.compile("sgd", "mse")
    return net


def seen_by_the_layer(model):
    kernel, bias = (np.asarray(v, float) for v in model.layers[0].weights)
    return X.astype(float) @ kernel + bias


@pytest.mark.tensorflow
def test_statistics_of_batches_of_any_size_are_those_of_all_rows(model):
    rows, mean, squares = measure_statistics(model, np.split(X, [7, 14, 40]))
    seen = seen_by_the_layer(model)
    assert rows == ROWS
    np.testing.assert_allclose(mean, seen.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(squares / rows, seen.var(axis=0), rtol=1e-3)


@pytest.mark.spark
@pytest.mark.tensorflow
def test_a_model_gets_the_statistics_of_all_rows_and_keeps_its_weights(spark, model):
    frame = spark.createDataFrame([(row.tolist(),) for row in X], "`a.b` array<float>")
    before = [np.asarray(v) for v in model.trainable_variables]
    # One of the partitions has no rows.
    recalibrate(model, frame.repartition(2).union(frame.limit(0)), "a.b", batch_size=16)
    seen, layer = seen_by_the_layer(model), model.layers[1]
    np.testing.assert_allclose(layer.moving_mean, seen.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, seen.var(axis=0), rtol=1e-3)
    for mine, old in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), old)
    with pytest.raises(EmptyDataError):
        recalibrate(model, frame.where("false"), "a.b")


@pytest.mark.tensorflow
def test_a_model_without_batch_normalization_is_refused():
    with pytest.raises(ConfigurationError, match="no layer of batch normalization"):
        recalibrate(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), None)

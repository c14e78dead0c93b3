"""What several models say together."""

import numpy as np
import pytest

from distkeras_grid.engine.combination import combine_models
from distkeras_grid.engine.keras_model import (
    model_from_bytes,
    model_to_bytes,
)
from distkeras_grid.errors import ConfigurationError
from tests.engines import keras

pytestmark = pytest.mark.tensorflow

X = np.random.default_rng(1).normal(size=(40, 5)).astype(np.float32)


def members(count=3, units=3):
    models = []
    for seed in range(count):
        keras.utils.set_random_seed(seed)
        layers = [keras.Input((5,)), keras.layers.Dense(units, "softmax")]
        models.append(keras.Sequential(layers))
    return models


def outputs(model):
    return keras.ops.convert_to_numpy(model(X))


def said(models):
    together = combine_models(models)
    alone = np.stack([outputs(model) for model in models])
    return outputs(together), alone


def test_N3_the_mean_sums_to_one_and_its_loss_is_at_most_the_mean_loss():
    together, alone = said(members())
    np.testing.assert_allclose(together.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(together, alone.mean(axis=0), rtol=1e-6)
    labels = np.arange(len(X)) % 3
    rows = np.arange(len(X))
    losses = -np.log(alone[:, rows, labels])
    assert -np.log(together[rows, labels]).mean() <= losses.mean()


def test_N4_the_order_of_the_members_does_not_matter():
    models = members()
    first, _ = said(models)
    second, _ = said(models[::-1])
    np.testing.assert_allclose(first, second, atol=1e-6)


def test_it_is_saved_and_loaded_like_any_model():
    together = combine_models(members())
    loaded = model_from_bytes(model_to_bytes(together))
    np.testing.assert_array_equal(outputs(loaded), outputs(together))


def test_models_of_several_inputs_are_refused():
    inputs = [keras.Input((2,)), keras.Input((2,))]
    model = keras.Model(inputs, keras.layers.Add()(inputs))
    with pytest.raises(ConfigurationError, match=r"one output\. Received: 2 inputs"):
        combine_models([model, model])

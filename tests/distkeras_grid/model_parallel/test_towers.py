"""The models of towers, what is refused, and a run with Spark's tasks."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.tower_model import stack
from distkeras_grid.model_parallel.towers import Towers, check_separable
from tests.distkeras_grid.model_parallel.helpers import check_trained_as_fit, head, tower, wide

pytestmark = pytest.mark.tensorflow


def test_towers_may_change_places_with_their_rows_of_the_master():
    model, names = wide()
    x = np.random.default_rng(1).random((8, 5), np.float32)
    expected = model(x)
    towers = [model.get_layer(name) for name in names]
    kernel, bias = model.get_layer("head").get_weights()
    order = (2, 0, 1)
    other = stack([towers[n] for n in order], head())
    rows = np.concatenate([kernel[4 * n : 4 * n + 4] for n in order])
    other.get_layer("head").set_weights([rows, bias])
    np.testing.assert_allclose(other(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("towers", "several"),
    [
        (lambda: [], 0),
        (lambda: [tower("same"), tower("same")], 0),
        (lambda: [tower("a"), tower("b")], 3),
        (lambda: [object()], 0),
    ],
)
def test_models_that_do_not_fit_each_other_are_refused(towers, several):
    with pytest.raises(ConfigurationError):
        stack(towers(), head(8, several=several))


def alone(*layers, name="a"):
    import keras

    return keras.Sequential([keras.Input((5,)), *layers], name=name)


def test_a_master_without_trained_weights_is_refused():
    import keras

    with pytest.raises(ConfigurationError, match="'b', which has none"):
        stack([tower("a")], keras.Sequential([keras.Input((4,)), keras.layers.ReLU()], name="b"))


def test_a_tower_that_adds_losses_is_refused():
    import keras

    for penalty in ({"kernel_regularizer": "l2"}, {"activity_regularizer": "l2"}):
        with pytest.raises(ConfigurationError, match="adds losses"):
            stack([alone(keras.layers.Dense(4, **penalty))], head(4))


def test_a_tower_whose_mask_would_not_travel_is_refused():
    """One that uses its mask up is not."""
    import keras

    layers = keras.layers

    def words():
        return layers.Embedding(9, 3, mask_zero=True)

    joins = keras.Sequential(
        [keras.Input((5, 3)), layers.GlobalAveragePooling1D(), layers.Dense(2)], name="head"
    )
    for masked in (alone(words()), alone(words(), layers.Dense(3), layers.Dropout(0.1))):
        with pytest.raises(ConfigurationError, match="mask"):
            stack([masked], joins)
    stack([alone(words(), layers.GlobalAveragePooling1D())], head(3))
    stack([alone(layers.Embedding(9, 3))], joins)


def test_models_that_share_a_layer_are_refused_by_its_name():
    """Each would train a copy of its own. A layer without variables may be shared."""
    import keras

    layers = keras.layers
    shared = layers.Dense(5, name="common")
    seeded = layers.Dropout(0.1, seed=1, name="common")
    nested = keras.Sequential([keras.Input((5,)), layers.Dense(5, name="common")])
    for each in (shared, seeded, nested):
        one, other = (alone(each, layers.Dense(5), name=name) for name in ("a", "b"))
        with pytest.raises(ConfigurationError, match=r"'a' and 'b'.*common"):
            stack([one, other], head(10))
    master = keras.Sequential([keras.Input((5,)), shared], name="head")
    with pytest.raises(ConfigurationError, match=r"'a' and 'head'.*common"):
        stack([alone(shared)], master)
    plain = layers.ReLU()
    stack([alone(layers.Dense(4), plain, name=name) for name in ("a", "b")], head(8))


def test_optimizers_that_look_at_all_gradients_are_refused():
    import keras

    with pytest.raises(ConfigurationError, match="global norm"):
        check_separable(keras.optimizers.Adam(global_clipnorm=1.0))
    with pytest.raises(ConfigurationError, match="holds others"):
        check_separable(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    check_separable(keras.optimizers.Adam(clipnorm=1.0))


@pytest.mark.full
@pytest.mark.spark
def test_towers_on_workers_are_trained_as_fit_trains_the_whole(spark):
    import keras

    keras.utils.set_random_seed(3)
    plain = [alone(keras.layers.Dense(8, "relu"), name=name) for name in ("a", "b")]
    check_trained_as_fit(spark, Towers, plain, head(16))

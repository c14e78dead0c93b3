"""Where models can be cut, what is refused, and that stages are the model."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from distkeras_grid.engine.compile_settings import adds_losses
from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.pipeline_partition import (
    check_stageable,
    choose_cuts,
    find_cuts,
    stages_of,
)
from distkeras_grid.model_parallel.rows_apart import check_mean_loss

pytestmark = pytest.mark.tensorflow


def residual():
    import keras

    given = keras.Input((6, 6, 2), name="image")
    h = keras.layers.Conv2D(4, 3, padding="same", name="stem")(given)
    for number in range(2):
        a = keras.layers.Conv2D(4, 3, padding="same", activation="relu", name=f"a{number}")(h)
        b = keras.layers.Conv2D(4, 3, padding="same", name=f"b{number}")(a)
        h = keras.layers.Add(name=f"add{number}")([h, b])
    h = keras.layers.GlobalAveragePooling2D(name="pool")(h)
    outputs = keras.layers.Dense(3, activation="softmax", name="out")(h)
    model = keras.Model(given, outputs)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def row(*layers, shape=(5,), **given):
    import keras

    return keras.Sequential([keras.Input(shape, **given), *layers])


def test_a_graph_is_cut_where_a_single_tensor_leads_on():
    assert list(find_cuts(residual())) == ["stem", "add0", "add1", "pool"]


def test_a_graph_that_has_a_way_around_everything_is_cut_nowhere():
    import keras

    given = keras.Input((4,))
    h = keras.layers.Dense(4)(given)
    h = keras.layers.Dense(4)(h)
    model = keras.Model(given, keras.layers.Add()([given, h]))
    assert find_cuts(model) == {}


def test_no_cut_is_between_two_uses_of_the_same_weights():
    import keras

    twice = keras.layers.Dense(4, name="twice")
    given = keras.Input((4,))
    h = keras.layers.Dense(4, name="one")(given)
    h = keras.layers.Dense(4, name="between")(twice(h))
    h = keras.layers.Dense(4, name="after")(twice(h))
    model = keras.Model(given, keras.layers.Dense(2, name="out")(h))
    assert list(find_cuts(model)) == ["one", "after"]


@pytest.mark.parametrize("names", [["none"], ["add1", "stem"], ["stem", "stem"], ["out"]])
def test_cuts_where_none_is_possible_are_refused_with_those_that_are(names):
    with pytest.raises(ConfigurationError, match="stem, add0, add1, pool"):
        stages_of(residual(), names)


def test_a_stage_without_anything_to_train_is_refused():
    import keras

    model = row(keras.layers.Dense(4, trainable=False, name="one"), keras.layers.Dense(3))
    with pytest.raises(ConfigurationError, match=r"stage 0 .*one"):
        stages_of(model, ["one"])


def test_stages_one_after_the_other_are_the_model_also_from_their_archives():
    model = model_from_bytes(model_to_bytes(residual()))
    x = np.random.default_rng(0).random((3, 6, 6, 2), np.float32)
    expected = np.asarray(model(x))
    stages = [
        model_from_bytes(model_to_bytes(stage)) for stage in stages_of(model, ["stem", "add1"])
    ]
    for stage in stages:
        x = stage(x)
    np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-6)


def own_step():
    import keras

    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    given = keras.Input((5,))
    return Own(given, keras.layers.Dense(3)(given))


def several():
    import keras

    one, other = keras.Input((5,)), keras.Input((5,))
    return keras.Model([one, other], keras.layers.Add()([one, other]))


def adding():
    """A layer that adds a loss in its training only."""
    import keras

    class Adds(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                self.add_loss(keras.ops.mean(x))
            return x

    return Adds()


def masking():
    """A layer of the user's that makes a mask."""
    import keras

    class Masks(keras.layers.Layer):
        def call(self, x):
            return keras.ops.expand_dims(x, -1)

        def compute_mask(self, x, previous_mask=None):  # noqa: ARG002
            return keras.ops.not_equal(x, 0)

    layer = Masks()
    layer.supports_masking = True
    return layer


def refused():
    import keras

    layers = keras.layers
    return {
        "its own train_step": own_step,
        "2 inputs": several,
        "an input of int32": lambda: row(layers.Embedding(9, 3), dtype="int32"),
        "adds losses": lambda: row(layers.Dense(3, kernel_regularizer="l2")),
        "adds losses: activity": lambda: row(layers.Dense(3, activity_regularizer="l2")),
        "adds losses: add_loss": lambda: row(layers.Dense(3), adding()),
        "Spectral": lambda: row(layers.SpectralNormalization(layers.Dense(3))),
        "MixUp": lambda: row(layers.MixUp(), shape=(4, 4, 3)),
        "CutMix": lambda: row(layers.CutMix(), shape=(4, 4, 3)),
        "UnitNormalization": lambda: row(layers.UnitNormalization(axis=(0, 1))),
        "Softmax": lambda: row(layers.Softmax(axis=0)),
        "A mask: own": lambda: row(masking(), layers.Dense(3)),
        "A mask": lambda: row(layers.Embedding(9, 3, mask_zero=True)),
        "Batch normalization": lambda: row(layers.Dense(3), layers.BatchNormalization()),
        "with an Input": lambda: keras.Sequential([layers.Dense(3)]),
    }


def test_models_that_stages_would_train_otherwise_are_refused():
    for why, build in refused().items():
        with pytest.raises(ConfigurationError, match=why.partition(":")[0]):
            check_stageable(build(), 2)


def test_what_sees_a_whole_batch_is_exact_with_one_micro_batch():
    import keras

    layers = keras.layers
    normalized = row(layers.Dense(3), layers.BatchNormalization())
    for model in (
        normalized,
        row(layers.SpectralNormalization(layers.Dense(3))),
        row(layers.MixUp(), shape=(4, 4, 3)),
        row(layers.UnitNormalization(axis=0)),
    ):
        check_stageable(model, 1)
    check_stageable(row(layers.LayerNormalization(), layers.UnitNormalization(axis=-1)), 2)
    normalized.layers[-1].trainable = False
    check_stageable(normalized, 2)


def test_the_look_for_losses_changes_no_variable():
    import keras

    model = row(
        keras.layers.Dense(3),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Reshape((3, 1)),
        keras.layers.LSTM(2, stateful=True),
        batch_size=2,
    )
    before = [variable.numpy() for variable in model.variables]
    assert not adds_losses(model)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_the_look_for_losses_takes_inputs_of_any_size():
    import keras

    conv = keras.layers.Conv2D(2, 5, activity_regularizer="l2")
    assert adds_losses(row(conv, keras.layers.MaxPooling2D(4), shape=(None, None, 3)))


def losses_of_all_forms():
    """Losses of rows and of whole batches, by name, as a function and as an object."""
    import keras

    losses = keras.losses
    sparse = losses.sparse_categorical_crossentropy
    return [
        *("mse", "categorical_crossentropy", "sparse_categorical_crossentropy"),
        *("dice", "Dice", "tversky", "circle", losses.dice, losses.tversky, losses.circle),
        *(losses.MeanSquaredError(), losses.MeanSquaredError(reduction="sum")),
        lambda y, prediction: (y - prediction) ** 2,
        *(losses.Dice(axis=axis) for axis in (None, -1, 1, (0, 1), (-2, -1))),
        *(partial(losses.dice, axis=axis) for axis in (0, 1)),
        *(losses.Tversky(alpha=0.3), losses.Tversky(axis=(1,)), losses.Circle()),
        *(losses.CosineSimilarity(axis=axis) for axis in (-1, 0)),
        *(losses.SparseCategoricalCrossentropy(ignore_class=each) for each in (None, 0)),
        partial(sparse, ignore_class=0),
    ]


def gradient_of_parts(model, x, y, count):
    """The gradient of a batch in so many micro-batches, as the stages sum it."""
    import tensorflow as tf

    total = 0.0
    for part, target in zip(np.split(x, count), np.split(y, count), strict=True):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=part, y=target, y_pred=model(part)) * len(part) / len(x)
        total = total + np.asarray(tape.gradient(loss, model.trainable_variables[0].value))
    return total


def test_a_loss_is_refused_if_and_only_if_micro_batches_have_another_gradient():
    import keras

    random = np.random.default_rng(2)
    x, labels = random.random((8, 5), np.float32), np.array([0, 0, 1, 2, 0, 1, 1, 2])
    one_hot, refused = np.eye(3, dtype=np.float32)[labels], 0
    for loss in losses_of_all_forms():
        keras.utils.set_random_seed(3)
        model = row(keras.layers.Dense(3, activation="sigmoid"))
        model.compile("sgd", loss)
        described = str(getattr(loss, "get_config", lambda each=loss: each)()).lower()
        y = labels if "sparse" in described or "circle" in described else one_hot
        one, four = (gradient_of_parts(model, x, y, count) for count in (1, 4))
        check_mean_loss(model, 1)
        if np.allclose(one, four, rtol=1e-4, atol=1e-6):
            check_mean_loss(model, 4)
            continue
        refused += 1
        with pytest.raises(ConfigurationError):
            check_mean_loss(model, 4)
    assert 0 < refused < len(losses_of_all_forms())


def test_stages_have_about_as_many_multiplications():
    import keras

    layers = keras.layers
    model = row(
        # For each pixel of 8 x 8: 3 * 3 * 2 * 4 and 4 biases, 9 * 4 * 4 and 4 biases.
        layers.Conv2D(4, 3, padding="same", name="small"),
        layers.Conv2D(4, 3, padding="same", name="large"),
        layers.Flatten(name="flat"),
        layers.Dense(10, name="dense"),
        shape=(8, 8, 2),
    )
    # 4,864 and 9,472 in the convolutions, 2,570 in the last layer: half of all is 8,453.
    assert choose_cuts(model, 2) == ["small"]
    assert choose_cuts(model, 3) in (["small", "large"], ["small", "flat"])
    assert choose_cuts(model, 1) == []


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_each_stage_has_something_to_train(stages):
    import keras

    layers = keras.layers
    model = row(
        layers.ReLU(name="none"),
        layers.Dense(64, name="one"),
        *(layers.Dense(2, name=name) for name in ("two", "three", "four")),
        layers.ReLU(name="last"),
    )
    found = choose_cuts(model, stages)
    assert len(found) == stages - 1
    assert all(stage.trainable_variables for stage in stages_of(model, found))
    with pytest.raises(ConfigurationError, match="4 parts"):
        choose_cuts(model, 5)

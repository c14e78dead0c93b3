"""Labels of any shape, or none, train as in Keras' own ``fit``: one worker, rows in their order."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid import Cluster, Field, ModelPredictor, SingleTrainer
from distkeras_grid.errors import ConfigurationError, LabelError

pytestmark = pytest.mark.tensorflow

ROWS, BATCH = 32, 8
RANDOM = np.random.default_rng(5)
X = RANDOM.random((ROWS, 6)).astype(np.float32)
STEPS = RANDOM.integers(0, 3, (ROWS, 6))
SPARSE = "sparse_categorical_crossentropy"


def net(last, loss, shape=(6,), **compiled):
    """Return a compiled net of one hidden layer, which ends with the layers of `last`."""
    import keras

    layers = [keras.Input(shape), keras.layers.Dense(12, "tanh"), *last]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), loss, **compiled)
    return model


def per_step(loss):
    from keras import layers

    return net([layers.Dense(18), layers.Reshape((6, 3)), layers.Softmax()], loss)


def seeded(build):
    """Return a new net with the same initial weights each time."""
    import keras

    keras.utils.set_random_seed(3)
    return build()


def simulated(model, x, y, **objects):
    """Return the model that one worker trains on rows in their order."""
    trainer = SingleTrainer(model, batch_size=BATCH, progress=False, jit=False, **objects)
    cluster = Cluster(workers=1, batch_seconds=0.01)
    return trainer.simulate((x, y), cluster, shuffle=False, seed=0).model


def assert_like_fit(build, x, y, fitted=None, **objects):
    expected = seeded(build)
    given = (x,) if y is None else (x, y if fitted is None else fitted)
    expected.fit(*given, batch_size=BATCH, shuffle=False, verbose=0)
    trained = simulated(seeded(build), x, y, **objects)
    for mine, theirs in zip(trained.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_a_class_for_each_step():
    assert_like_fit(lambda: per_step(SPARSE), X, STEPS)


def test_one_hot_labels_for_each_step_in_one_array():
    one_hot = np.eye(3, dtype=np.float32)[STEPS]
    flat = one_hot.reshape(ROWS, -1)
    assert_like_fit(lambda: per_step("categorical_crossentropy"), X, flat, one_hot)


def test_labels_take_the_shape_of_the_output_and_are_not_broadcast_over_the_batch():
    from keras import layers

    def build():
        return net([layers.Dense(6), layers.Reshape((1, 6))], "mse")

    assert_like_fit(build, X, X, X[:, None])


def test_labels_that_are_ignored():
    import keras

    def build():
        return per_step(keras.losses.SparseCategoricalCrossentropy(ignore_class=255))

    assert_like_fit(build, X, np.where(X < 0.3, 255, STEPS))
    with pytest.raises(LabelError, match=r"254, .* 0 to 2 here \(and 255, which it ignores\)"):
        simulated(build(), X, np.where(X < 0.3, 254, STEPS))


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("given", ["all", "needed"])
def test_an_output_without_a_loss_needs_no_label(keyed, given):
    import keras

    def build():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(4, "tanh", name="hidden")(inputs)
        kind = keras.layers.Dense(3, "softmax", name="kind")(hidden)
        outputs = {"kind": kind, "hidden": hidden} if keyed else [kind, hidden]
        model = keras.Model(inputs, outputs)
        model.compile("sgd", {"kind": SPARSE} if keyed else [SPARSE, None])
        return model

    y = STEPS[:, 0]
    whole = {"kind": y, "hidden": None} if keyed else [y, None]
    labels = whole if given == "all" else {"kind": y} if keyed else y
    assert_like_fit(build, X, labels, {"kind": y} if keyed else [y, None])


def test_outputs_in_a_dictionary_have_labels_by_its_keys():
    import keras

    def build():
        inputs = keras.Input((6,))
        outputs = {
            "size": keras.layers.Dense(1, name="first")(inputs),
            "kind": keras.layers.Dense(3, "softmax", name="second")(inputs),
        }
        model = keras.Model(inputs, outputs)
        losses = {"size": "mse", "kind": SPARSE}
        model.compile("sgd", losses, metrics={"kind": ["accuracy"]})
        return model

    assert_like_fit(build, X, {"kind": STEPS[:, 0], "size": X[:, :1]})


def test_a_model_with_a_loss_of_its_own_takes_no_labels():
    import keras

    @keras.saving.register_keras_serializable("tests")
    class Penalty(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.mean(inputs**2))
            return inputs

    def build():
        return net([keras.layers.Dense(2), Penalty()], None)

    assert_like_fit(build, X, None)
    with pytest.raises(ConfigurationError, match="label_col has nothing"):
        simulated(net([keras.layers.Dense(2)], "mse"), X, None)


def test_a_step_of_its_own_gets_the_features_alone():
    import keras

    class Alone(keras.Model):
        def __init__(self, **named):
            super().__init__(**named)
            self.inner = keras.layers.Dense(6)

        def call(self, x):
            return self.inner(x)

        def train_step(self, data):
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = keras.ops.mean((self(data, training=True) - data) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    def build():
        model = Alone()
        model(X[:1])
        model.compile("sgd")
        return model

    assert_like_fit(build, X, None, custom_objects={"Alone": Alone})


def test_missing_labels_are_for_losses_that_mask_them():
    import keras

    def masked(true, predicted):
        known = ~keras.ops.isnan(true)
        difference = keras.ops.where(known, true, predicted) - predicted
        return keras.ops.mean(difference**2, axis=-1)

    y = np.where(X[:, :2] < 0.3, np.nan, X[:, :2]).astype(np.float32)

    def build(loss=masked):
        return net([keras.layers.Dense(2)], loss)

    assert_like_fit(build, X, y, custom_objects={"masked": masked})
    with pytest.raises(LabelError, match=r"NaN in \d+ of 32 rows.* loss of your own"):
        simulated(build("mse"), X, y)


@pytest.mark.full
@pytest.mark.spark
def test_columns_of_all_kinds_from_spark_to_predictions(spark):
    """An image that is its own label, a mask, two columns for one input, names with dots."""
    import keras
    import pyarrow as pa

    images = RANDOM.integers(0, 256, (ROWS, 4, 4, 1), np.uint8)
    masks = (images[..., 0] > 99).astype(np.uint8)
    pair = X[:, :2]
    columns = {
        "an.image": [image.tobytes() for image in images],
        "mask": [mask.tobytes() for mask in masks],
        "c.0": pair[:, 0],
        "c 1": pair[:, 1],
        "other.one": np.arange(ROWS),
    }
    frame = spark.createDataFrame(pa.table(columns)).coalesce(1)

    def build():
        image = keras.Input((4, 4, 1), name="image")
        numbers = keras.Input((2,), name="numbers")
        widened = keras.layers.RepeatVector(16)(numbers)
        both = [image, keras.layers.Reshape((4, 4, 2))(widened)]
        joined = keras.layers.Concatenate()(both)
        again = keras.layers.Conv2D(1, 3, padding="same", name="one")(joined)
        pixels = keras.layers.Conv2D(2, 1, activation="softmax", name="two")(joined)
        named = {"image": image, "numbers": numbers}
        model = keras.Model(named, {"again": again, "mask": pixels})
        model.compile("sgd", {"again": "mse", "mask": SPARSE})
        return model

    features = {
        "image": Field("an.image", (4, 4, 1), scale=1 / 255),
        "numbers": ["c.0", "c 1"],
    }
    labels = {"again": "an.image", "mask": Field("mask", (4, 4))}
    trainer = SingleTrainer(
        seeded(build), batch_size=BATCH, features_col=features, label_col=labels, progress=False
    )
    trained = trainer.train(frame, shuffle=False, seed=1, validation_data=frame)
    expected, scaled = seeded(build), images.astype(np.float32) / 255
    given = {"image": scaled, "numbers": pair}
    y = {"again": scaled, "mask": masks}
    expected.fit(given, y, batch_size=BATCH, shuffle=False, verbose=0)
    for mine, theirs in zip(trained.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    told = expected.evaluate(given, y, verbose=0, return_dict=True)["loss"]
    assert trainer.history.history["val_loss"][-1] == pytest.approx(told, rel=1e-5)
    predicted = ModelPredictor(trained, features).predict(frame).toPandas()
    assert list(predicted.columns) == [*columns, "prediction_again", "prediction_mask"]
    whole = expected.predict(given, verbose=0)["mask"].reshape(ROWS, -1)
    np.testing.assert_allclose(np.stack(predicted["prediction_mask"]), whole, atol=1e-5)

"""Training with divided convolutions through real Spark tasks."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, NotEnoughSlotsError

pytestmark = [pytest.mark.tensorflow, pytest.mark.spark]

ROWS = 96


def network():
    """A way around, normalization, dropout, momentum, clipping and regularization."""
    import keras

    keras.utils.set_random_seed(2)
    layers = keras.layers
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(6, 3, padding="same", activation="relu", name="first")(inputs)
    side = layers.Conv2D(6, 3, padding="same", use_bias=False, name="side")(x)
    x = layers.BatchNormalization()(layers.Add()([x, side]))
    x = layers.Dropout(0.3, seed=3)(x)
    x = layers.Conv2D(4, 3, strides=2, kernel_regularizer="l2", name="second")(x)
    x = layers.SeparableConv2D(4, 2, name="third")(x)
    outputs = layers.Dense(3, activation="softmax")(layers.Flatten()(x))
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=1.0),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(4)
    return random.random((ROWS, 8, 8, 2), np.float32), np.arange(ROWS) % 3


@pytest.fixture(scope="module")
def frame(spark, rows):
    from distkeras_grid import Field

    x, y = rows
    table = [(row.ravel().tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    data = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)
    return data.withMetadata("x", Field("x", (8, 8, 2)).to_metadata())


def trainer(**arguments):
    from distkeras_grid import ConvolutionSplit

    settings = {"num_workers": 2, "batch_size": 16, "features_col": "x", "progress": False}
    return ConvolutionSplit(network(), **{**settings, **arguments})


def test_V4_a_divided_model_is_trained_as_fit_trains_the_whole(frame, rows, tmp_path):
    import keras

    expected = network()
    history = expected.fit(*rows, batch_size=16, epochs=2, shuffle=False, verbose=0)
    seen = []
    split = trainer(layers="all", num_epoch=2)
    model = split.train(
        frame,
        shuffle=False,
        validation_data=frame,
        seed=1,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: seen.append(logs))],
    )
    for one, other in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert split.history.history["accuracy"] == pytest.approx(history.history["accuracy"])
    assert seen[-1]["val_loss"] == pytest.approx(
        expected.evaluate(*rows, verbose=0, return_dict=True)["loss"], rel=1e-4
    )
    shares = split.history.params["shares"]
    assert {name: sum(each) for name, each in shares.items()} == {
        "first": 6,
        "side": 6,
        "second": 4,
    }
    # Two cores of one machine: it does not pay, and that is said.
    assert any("Dividing" in line for line in split.run["devices"])
    split.save(str(tmp_path / "run"))
    assert frame.sparkSession.sparkContext.statusTracker().getActiveJobsIds() == []


def test_what_cannot_be_divided_is_refused_before_any_work(frame):
    import keras

    with pytest.raises(NotEnoughSlotsError):
        trainer(num_workers=64).train(frame)
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    dense.compile("sgd", "mse")
    split = trainer()
    split.keras_model = dense
    with pytest.raises(ConfigurationError, match="without a Conv2D"):
        split.train(frame)

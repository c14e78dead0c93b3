"""Layers and models whose classes do not say how they are built again, as ``fit`` takes them."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid import Cluster, SingleTrainer
from distkeras_grid.engine.keras_model import get_flat_weights, initial_weights
from distkeras_grid.errors import ConfigurationError

pytestmark = pytest.mark.tensorflow

ROWS = 48


def arrays():
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 4)).astype(np.float32), rng.integers(0, 3, ROWS)


def simulated(model, *kinds, data=None, **options):
    trainer = SingleTrainer(
        model,
        batch_size=16,
        progress=False,
        jit=False,
        custom_objects={kind.__name__: kind for kind in kinds},
        **options,
    )
    return trainer.simulate(
        data or arrays(), Cluster(workers=1, batch_seconds=0.01), shuffle=False, seed=1
    ).model


def assert_as_fit(model, *kinds):
    import keras

    trained = simulated(model, *kinds)
    model.fit(*arrays(), batch_size=16, shuffle=False, verbose=0)
    for a, b in zip(trained.variables, model.variables, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b), atol=1e-6
        )


def test_a_layer_and_a_model_as_the_guides_print_them():
    import keras

    layers = keras.layers

    class Block(layers.Layer):
        def __init__(self, units, rate=0.1):
            super().__init__()
            self.dense, self.dropout = layers.Dense(units), layers.Dropout(rate)

        def call(self, x, training=False):
            return self.dropout(self.dense(x), training=training)

    class Net(keras.Model):
        def __init__(self, units=5):
            super().__init__()
            self.units = units
            self.block, self.out = Block(units), layers.Dense(3)

        def call(self, x):
            return self.out(self.block(x))

    model = Net(6)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert_as_fit(model, Net, Block)
    weights = get_flat_weights(model)
    assert np.abs(initial_weights(model, (1, 1)) - weights).max() > 0
    np.testing.assert_array_equal(get_flat_weights(model), weights)


def test_a_model_that_holds_models_and_compiles_itself():
    import keras

    class Distiller(keras.Model):
        def __init__(self, student, teacher):
            super().__init__()
            self.teacher = teacher
            self.student = student

        def compile(self, optimizer, metrics, student_loss_fn, alpha=0.1):
            super().compile(optimizer=optimizer, metrics=metrics)
            self.student_loss_fn = student_loss_fn
            self.alpha = alpha

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **_):  # noqa: ARG002
            taught = keras.ops.mean((self.teacher(x) - y_pred) ** 2)
            return self.student_loss_fn(y, y_pred) + self.alpha * taught

        def call(self, x):
            return self.student(x)

    def net():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

    model = Distiller(net(), net())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", ["accuracy"], loss, alpha=0.5)
    assert_as_fit(model, Distiller)


def test_a_model_of_parts_with_a_step_of_its_own():
    import keras

    class Auto(keras.Model):
        def __init__(self, encoder, decoder, weight):
            super().__init__()
            self.encoder = encoder
            self.decoder = decoder
            self.weight = weight

        def train_step(self, data):
            import tensorflow as tf

            x = data[0]
            with tf.GradientTape() as tape:
                loss = self.weight * tf.reduce_mean((self.decoder(self.encoder(x)) - x) ** 2)
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            return {"loss": loss}

    if keras.backend.backend() != "tensorflow":
        pytest.skip("its train_step is TensorFlow's")
    layers = keras.layers
    encoder = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    decoder = keras.Sequential([keras.Input((2,)), layers.Dense(4)])
    model = Auto(encoder, decoder, weight=0.5)
    model.compile("sgd")
    assert_as_fit(model, Auto)


def test_lambdas_go_through_where_they_are_allowed_and_nowhere_else():
    import keras
    from keras.src.backend.common import global_state

    from distkeras_grid.engine.custom_objects import serializable_objects
    from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes

    layers = keras.layers
    model = keras.Sequential([keras.Input((4,)), layers.Lambda(lambda x: x * 2), layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    archive = model_to_bytes(model)
    with pytest.raises(ConfigurationError, match="enable_unsafe_deserialization") as raised:
        simulated(model)
    assert len(str(raised.value)) < 700
    try:
        keras.config.enable_unsafe_deserialization()
        objects = serializable_objects(archive, {})
    finally:
        global_state.set_global_attribute("safe_mode_saving", None)
    # As on an executor, where it was not called.
    x = arrays()[0]
    np.testing.assert_array_equal(model_from_bytes(archive, objects)(x), model(x))
    with pytest.raises(ConfigurationError):
        model_from_bytes(archive)


def test_what_cannot_be_known_is_one_line_that_names_the_class():
    import keras

    class Silent(keras.layers.Layer):
        def __init__(self, part):
            super().__init__()
            self.dense = keras.layers.Dense(part.units)

        def call(self, x):
            return self.dense(x)

    model = keras.Sequential([keras.Input((4,)), Silent(keras.layers.Dense(3))])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ConfigurationError, match=r"self\.part = part, or give Silent get_config"):
        simulated(model, Silent)


@pytest.mark.parametrize(
    ("options", "told"), [({"stateful": True}, "carries its state on"), ({}, "batches of 16 rows")]
)
def test_models_that_depend_on_their_batches_are_refused_before_the_run(options, told):
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [keras.Input(batch_shape=(16, 4, 1)), layers.LSTM(2, **options), layers.Dense(3)]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, y = arrays()
    with pytest.raises(ConfigurationError, match=told):
        simulated(model, data=(x[..., None], y))

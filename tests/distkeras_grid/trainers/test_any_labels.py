"""Labels of any shape, or none, train as in Keras' own ``fit``: one worker, rows in their order."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid import Cluster, SingleTrainer
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

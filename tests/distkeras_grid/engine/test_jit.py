import pytest

from distkeras_grid.engine.jit import XLA_LAYERS, decide_jit
from tests.engines import keras

pytestmark = pytest.mark.tensorflow


ARGUMENTS = {"Dense": (2,), "Dropout": (0.1,), "Conv1D": (2, 2), "LSTM": (2,)}


def model(*names, **compile_arguments):
    layers = [getattr(keras.layers, name)(*ARGUMENTS.get(name, ())) for name in names]
    net = keras.Sequential([keras.Input((4, 3)), *layers])
    net.compile("sgd", "mse", **compile_arguments)
    return net


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("Flatten", "Dense", "BatchNormalization", "Dropout", "Dense"), True),
        (("Conv1D", "Flatten", "Dense"), False),
        (("MaxPooling1D", "Flatten", "Dense"), False),
        (("LSTM", "Dense"), False),
    ],
    ids=["dense", "convolution", "pooling", "recurrent"],
)
def test_auto_looks_at_the_layers(names, expected):
    assert decide_jit(model(*names), "auto") is expected


def test_auto_looks_into_nested_models():
    inner = keras.Sequential([keras.Input((4, 3)), keras.layers.Conv1D(2, 2)])
    net = keras.Sequential([keras.Input((4, 3)), inner, keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    assert not decide_jit(net, "auto")


def test_auto_leaves_layers_and_train_steps_of_the_user_alone():
    class Dense(keras.layers.Dense):
        pass

    class Model(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    inputs = keras.Input((4,))
    own_layer = keras.Model(inputs, Dense(1)(inputs))
    own_step = Model(inputs, keras.layers.Dense(1)(inputs))
    for net in (own_layer, own_step):
        net.compile("sgd", "mse")
        assert not decide_jit(net, "auto")


def test_the_user_has_the_last_word_but_not_over_eager_models():
    assert decide_jit(model("Conv1D", "Flatten", "Dense"), True)
    assert not decide_jit(model("Flatten", "Dense"), False)
    assert not decide_jit(model("Flatten", "Dense", run_eagerly=True), True)


def test_every_named_layer_exists():
    assert all(hasattr(keras.layers, name) for name in XLA_LAYERS)

"""Which layers of a model can be divided, and why others cannot."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.convolution_finder import find_convolutions

pytestmark = pytest.mark.tensorflow


def model_of(*layers, shape=(8, 8, 4)):
    import keras

    return keras.Sequential([keras.Input(shape), *layers])


def reasons():
    import keras

    layers = keras.layers

    class Own(layers.Conv2D):
        pass

    return {
        "kind": (layers.Conv2DTranspose(4, 3, name="c"), (8, 8, 4), "Conv2DTranspose is none of"),
        "own": (Own(4, 3, name="c"), (8, 8, 4), "Own is none of"),
        "channels": (
            layers.Conv2D(4, 3, data_format="channels_first", name="c"),
            (4, 8, 8),
            "channels do not come last",
        ),
        "precision": (layers.Conv2D(4, 3, dtype="mixed_float16", name="c"), (8, 8, 4), "float16"),
        "size": (layers.Conv2D(4, 3, name="c"), (None, 8, 4), "no fixed size"),
        "one": (layers.Conv2D(1, 3, name="c"), (8, 8, 4), "single channel"),
        "both": (
            layers.DepthwiseConv2D(3, strides=2, dilation_rate=2, name="c"),
            (8, 8, 4),
            "strides and dilation",
        ),
    }


@pytest.mark.parametrize("case", ["kind", "own", "channels", "precision", "size", "one", "both"])
def test_what_stays_whole_says_why(case):
    layer, shape, why = reasons()[case]
    found = find_convolutions(model_of(layer, shape=shape))
    assert found.layers == {}
    assert why in found.whole["c"]
    with pytest.raises(ConfigurationError, match="cannot be divided"):
        found.chosen(("c",))


def test_the_gradient_of_the_input_is_needed_only_after_what_is_trained():
    import keras

    layers = keras.layers
    frozen = layers.Conv2D(4, 3, padding="same", name="frozen")
    frozen.trainable = False
    chain = [layers.Rescaling(2.0), frozen, layers.Activation("relu")]
    model = model_of(
        *chain,
        layers.Conv2D(4, 3, padding="same", name="first trained"),
        layers.Conv2D(4, 3, padding="same", name="second trained"),
    )
    found = {name: c.input_gradient for name, (_, c) in find_convolutions(model).layers.items()}
    assert found == {"frozen": False, "first trained": False, "second trained": True}


def test_an_own_train_step_may_need_every_gradient():
    import keras

    class Adversarial(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    layers = [keras.Input((8, 8, 4)), keras.layers.Conv2D(4, 3, name="c")]
    assert find_convolutions(Adversarial(layers)).layers["c"][1].input_gradient
    assert not find_convolutions(keras.Sequential(layers)).layers["c"][1].input_gradient


def test_layers_of_a_model_inside_a_model_are_found_and_their_gradient_is_kept():
    import keras

    inner = model_of(keras.layers.Conv2D(6, 3, name="inside"))
    outer = model_of(keras.layers.Dense(4), inner, keras.layers.Conv2D(2, 1, name="outside"))
    (inside, outside) = (c for _, c in find_convolutions(outer).layers.values())
    assert (inside.name, inside.input_shape) == ("inside", (8, 8, 4))
    assert outside.input_gradient


def two_sizes(shared):
    """A layer on an image and on the image at half the size, as in a pyramid."""
    import keras

    layers = keras.layers
    given = keras.Input((8, 8, 4))
    sizes = [given, layers.MaxPooling2D()(given)]
    pooled = [layers.GlobalAveragePooling2D()(shared(each)) for each in sizes]
    return keras.Model(given, layers.Concatenate()(pooled))


def test_a_layer_on_inputs_of_several_sizes_stays_whole():
    """Its output would get the shape of the first one."""
    import keras

    model = two_sizes(keras.layers.Conv2D(6, 3, name="c"))
    for each in (model, model_of(model)):
        found = find_convolutions(each)
        assert found.layers == {}
        with pytest.raises(ConfigurationError, match=r"\(4, 4, 4\), \(8, 8, 4\)"):
            found.chosen(("c",))


def test_a_layer_on_several_inputs_of_one_size_is_divided():
    """Inputs that it has in another model do not count."""
    import keras

    shared = keras.layers.Conv2D(4, 3, padding="same", name="c")
    two_sizes(shared)
    given = keras.Input((6, 6, 4))
    found = find_convolutions(keras.Model(given, shared(shared(given))))
    assert found.layers["c"][1].input_shape == (6, 6, 4)


def test_a_model_whose_calls_keras_does_not_know_keeps_its_layers_whole():
    """Also if it uses a name of Keras for layers of its own."""
    import keras

    class Heads(keras.Model):
        def __init__(self):
            super().__init__()
            self.outputs = [keras.layers.Conv2D(4, 3, name="c")]

        def call(self, x):
            return self.outputs[0](x)

    model = Heads()
    model(np.zeros((1, 8, 8, 4), np.float32))
    assert "no fixed size" in find_convolutions(model).whole["c"]


def test_a_layer_that_another_layer_calls_too_stays_whole():
    """Keras does not know that call, so it may be of another size: it got the shape of one."""
    import keras

    layers = keras.layers
    shared = layers.Conv2D(6, 3, name="c")
    image, series = keras.Input((8, 8, 4)), keras.Input((3, 5, 5, 4))
    outputs = [
        layers.GlobalAveragePooling2D()(shared(image)),
        layers.GlobalAveragePooling3D()(layers.TimeDistributed(shared)(series)),
    ]
    found = find_convolutions(keras.Model([image, series], layers.Concatenate()(outputs)))
    assert found.layers == {}
    assert "TimeDistributed" in found.whole["c"]


def test_two_convolutions_of_one_name_are_refused():
    import keras

    inner = model_of(keras.layers.Conv2D(4, 3, padding="same", name="c"))
    with pytest.raises(ConfigurationError, match="each needs its own"):
        find_convolutions(model_of(inner, keras.layers.Conv2D(4, 3, name="c")))

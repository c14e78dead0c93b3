"""Which layers of a model can be divided, and why others cannot."""

from __future__ import annotations

import re

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.convolution_finder import find_convolutions

pytestmark = pytest.mark.tensorflow


def model_of(*layers, shape=(8, 8, 4)):
    import keras

    return keras.Sequential([keras.Input(shape), *layers])


def whole_models():
    """Models with a convolution `c` that stays whole, each with a part of the reason."""
    import keras

    layers = keras.layers

    class Own(layers.Conv2D):
        pass

    class Adversarial(keras.Sequential):
        """May call a layer several times."""

        def train_step(self, data):
            return super().train_step(data)

    class Heads(keras.Model):
        """Its calls are unknown to Keras, and it uses a name of Keras for layers of its own."""

        def __init__(self):
            super().__init__()
            self.outputs = [layers.Conv2D(4, 3, name="c")]

        def call(self, x):
            return self.outputs[0](x)

    yield model_of(Own(4, 3, name="c")), "Own is not Conv2D"
    for why, options in {
        "channels do not come last": {"data_format": "channels_first"},
        "float16": {"dtype": "mixed_float16"},
        "single output channel": {"filters": 1},
        "groups": {"groups": 2},
        "dilated": {"dilation_rate": 2},
    }.items():
        yield (
            model_of(layers.Conv2D(**{"filters": 4, "kernel_size": 3, "name": "c", **options})),
            why,
        )
    yield model_of(layers.Conv2D(4, 3, name="c"), shape=(None, 8, 4)), "no fixed size"
    step = [keras.Input((8, 8, 4)), layers.Conv2D(4, 3, name="c")]
    yield Adversarial(step), "train_step of its own"
    heads = Heads()
    heads(np.zeros((1, 8, 8, 4), np.float32))
    yield heads, "no fixed size"
    # Two layers call it, or a model with it.
    shared, series = layers.Conv2D(6, 3, name="c"), keras.Input((3, 5, 5, 4))
    image = keras.Input((8, 8, 4))
    outputs = [
        layers.GlobalAveragePooling2D()(shared(image)),
        layers.GlobalAveragePooling3D()(layers.TimeDistributed(shared)(series)),
    ]
    yield keras.Model([image, series], layers.Concatenate()(outputs)), "TimeDistributed"
    inner = model_of(layers.Conv2D(6, 3, name="c"), shape=(5, 5, 4))
    yield keras.Model(series, layers.TimeDistributed(inner)(series)), "TimeDistributed"


def check_whole(model, why):
    found = find_convolutions(model)
    assert found.layers == {}
    assert re.search(why, found.whole["c"])


def test_what_stays_whole_says_why():
    for model, why in whole_models():
        check_whole(model, why)


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


def test_layers_of_a_model_inside_a_model_are_found_and_their_gradient_is_kept():
    import keras

    inner = model_of(keras.layers.Conv2D(6, 3, name="inside"))
    outer = model_of(keras.layers.Dense(4), inner, keras.layers.Conv2D(2, 1, name="outside"))
    (inside, outside) = (c for _, c in find_convolutions(outer).layers.values())
    assert (inside.name, inside.input_shape) == ("inside", (8, 8, 4))
    assert outside.input_gradient


def test_a_layer_that_a_batch_passes_twice_stays_whole():
    """Also if it is in a model that is called twice. Calls in another model do not count."""
    import keras

    shared = keras.layers.Conv2D(4, 3, padding="same", name="c")
    given = keras.Input((6, 6, 4))
    twice = keras.Model(given, shared(shared(given)))
    check_whole(twice, "called 2 times")
    check_whole(model_of(twice, shape=(6, 6, 4)), "called 2 times")
    inner = model_of(shared, shape=(6, 6, 4))
    pair = [keras.Input((6, 6, 4)) for _ in range(2)]
    check_whole(keras.Model(pair, keras.layers.Add()(list(map(inner, pair)))), "called 2 times")
    found = find_convolutions(keras.Model(given, shared(given)))
    assert found.layers["c"][1].input_shape == (6, 6, 4)


def test_two_convolutions_of_one_name_are_refused():
    import keras

    inner = model_of(keras.layers.Conv2D(4, 3, padding="same", name="c"))
    with pytest.raises(ConfigurationError, match="each needs its own"):
        find_convolutions(model_of(inner, keras.layers.Conv2D(4, 3, name="c")))

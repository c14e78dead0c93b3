"""Convolutions that several devices compute equal those of one: V1 and V3."""

from __future__ import annotations

import time

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel import devices as devices_module
from distkeras_grid.model_parallel.arithmetic import PartialConvolution
from distkeras_grid.model_parallel.convolution_finder import find_convolutions
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.split_convolution_layer import install
from tests.distkeras_grid.model_parallel.helpers import devices_of, plan_of

pytestmark = pytest.mark.tensorflow

#: Of each case the options of the layer, and its channels on three devices.
CASES = {
    "plain": (dict(kernel_size=3), (3, 7, 10)),
    "same, strides": (dict(kernel_size=5, strides=(2, 3), padding="same"), (3, 7, 10)),
    "valid, strides": (dict(kernel_size=(3, 2), strides=2, use_bias=False), (1, 2, 3)),
    "activation": (dict(kernel_size=3, activation="relu"), (2, 2, 2)),
    "master alone": (dict(kernel_size=3), (6, 0, 0)),
    "master without": (dict(kernel_size=3), (0, 2, 4)),
}
SHAPE = (9, 8, 5)


def gradients(model, x):
    """Output, and the gradients of a loss that weights each output, in a compiled call."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=True)
            scale = tf.reshape(tf.range(tf.size(y), dtype="float32"), tf.shape(y))
            loss = tf.reduce_sum(y * tf.sin(scale))
        return [y, *tape.gradient(loss, [x, *(v.value for v in model.trainable_variables)])]

    return [tensor.numpy() for tensor in compute(tf.constant(x))]


#: Largest differences in terms of the largest number of each array (V1). The largest measured with
#: 20 other seeds, on two cores of x86-64: 0, 3.9e-7, 5.7e-7, 3.6e-7 and 3.5e-7.
BOUNDS = {"output": 1e-6, "input": 7e-7, "before": 7e-7, "kernel": 7e-7, "bias": 7e-7}


def apart(one, other):
    """The largest difference, in terms of the largest number of the first array."""
    return np.abs(one - other).max() / np.abs(one).max()


#: The others of CASES are kernels of TensorFlow that these use, too.
SOON = {"same, strides", "valid, strides", "master without"}


@pytest.mark.parametrize(
    "case", [c if c in SOON else pytest.param(c, marks=pytest.mark.full) for c in CASES]
)
def test_output_and_gradients_are_those_of_the_whole_layer(case):
    import keras

    options, shares = CASES[case]
    keras.utils.set_random_seed(1)
    # A layer before it, so that the gradient of its input is needed. The gradient of a bias there
    # would be a sum over all positions, whose terms cancel each other.
    before = keras.layers.Dense(SHAPE[-1], use_bias=False)
    layer = keras.layers.Conv2D(sum(shares), **options, bias_initializer="normal", name="c")
    model = keras.Sequential([keras.Input(SHAPE), before, layer])
    x = np.random.default_rng(1).standard_normal((4, *SHAPE), np.float32)
    expected = gradients(model, x)
    found = find_convolutions(model)
    layers = [convolution for _, convolution in found.layers.values()]
    assert layers[0].output_shape == model.output_shape[1:]
    assert layers[0].input_gradient
    with devices_of(layers, 3) as devices:
        install(list(found.layers.values()), devices)
        devices.apply_plan(plan_of(c=shares))
        before = devices.group.moved
        divided = gradients(model, x)
        # Outside of a compiled call, too.
        assert apart(expected[0], model(x)) <= BOUNDS["output"]
        assert (devices.group.moved > before) == any(shares[1:])
    found = {name: apart(*pair) for name, *pair in zip(BOUNDS, expected, divided, strict=False)}
    assert {name: each for name, each in found.items() if not each <= BOUNDS[name]} == {}


#: Seconds that a slow part takes, which is much more than the others take.
ALONE = 0.05


def test_the_master_alone_is_not_compared_with_devices_that_work_at_once(monkeypatch):
    """While all layers are whole, the others wait: that pace says what a whole layer takes."""

    class Alone(PartialConvolution):
        def __init__(self, layer, x, kernel):
            super().__init__(layer, x, kernel)
            time.sleep(ALONE if kernel.shape[-1] == layer.channels else 0.0)

    layer = Convolution(
        name="c",
        input_shape=(8, 8, 4),
        kernel_size=(3, 3),
        channels=12,
        strides=(1, 1),
        padding="same",
    )
    monkeypatch.setattr(devices_module, "PartialConvolution", Alone)
    with devices_of([layer], 2) as devices:
        (planned,) = devices.measure().layers
    assert planned.whole > ALONE


def test_a_second_call_of_a_layer_before_its_gradient_is_an_error():
    """Only the newest pass of a layer is open: no gradient is that of another call."""
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.Input(SHAPE), keras.layers.Conv2D(4, 3, name="c")])
    found = list(find_convolutions(model).layers.values())
    with devices_of([described for _, described in found], 2) as devices:
        install(found, devices)
        devices.apply_plan(plan_of(c=(2, 2)))
        x = tf.ones((2, *SHAPE))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) + model(2 * x))
        with pytest.raises(ConfigurationError, match="called several times"):
            tape.gradient(loss, model.trainable_variables[0].value)

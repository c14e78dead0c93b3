"""Convolutions that several devices compute equal those of one: V1, V3 and V4."""

from __future__ import annotations

import time

import numpy as np
import pytest

from distkeras_grid.model_parallel import devices as devices_module
from distkeras_grid.model_parallel.arithmetic import UnitRange
from distkeras_grid.model_parallel.convolution_finder import find_convolutions
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.devices import Devices
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.split_convolution_layer import install
from tests.distkeras_grid.model_parallel.helpers import PATIENT, devices_of, plan_of, planning

pytestmark = pytest.mark.tensorflow

#: Of each case the layer, its input without the batch, and the shares of three devices.
CASES = {
    "plain": (("Conv2D", 20, 3), (9, 8, 5), (3, 7, 10)),
    "same, strides": (
        ("Conv2D", 20, 5, dict(strides=(2, 3), padding="same")),
        (9, 8, 5),
        (3, 7, 10),
    ),
    "valid, strides": (
        ("Conv2D", 6, (3, 2), dict(strides=2, use_bias=False)),
        (9, 8, 5),
        (1, 2, 3),
    ),
    "dilation": (("Conv2D", 6, 3, dict(dilation_rate=2, padding="same")), (9, 8, 5), (1, 2, 3)),
    "groups": (("Conv2D", 12, 3, dict(groups=4, padding="same")), (6, 6, 8), (1, 2, 1)),
    "groups, strides": (("Conv2D", 12, 3, dict(groups=4, strides=2)), (7, 6, 8), (2, 0, 2)),
    "groups, dilation": (("Conv2D", 8, 3, dict(groups=2, dilation_rate=2)), (7, 8, 4), (1, 1, 0)),
    "depthwise": (("DepthwiseConv2D", None, 3, dict(depth_multiplier=2)), (6, 6, 7), (1, 4, 2)),
    "depthwise, strides": (
        ("DepthwiseConv2D", None, 3, dict(strides=2, padding="same")),
        (6, 7, 7),
        (3, 0, 4),
    ),
    "depthwise, dilation": (
        ("DepthwiseConv2D", None, 3, dict(dilation_rate=2)),
        (8, 7, 4),
        (1, 2, 1),
    ),
    "1 dimension": (("Conv1D", 6, 3, dict(strides=2, padding="same")), (9, 4), (1, 2, 3)),
    "causal": (("Conv1D", 6, 3, dict(padding="causal")), (9, 4), (1, 2, 3)),
    "causal, dilation": (
        ("Conv1D", 6, 3, dict(padding="causal", dilation_rate=2)),
        (9, 4),
        (2, 2, 2),
    ),
    "depthwise, 1 dimension": (("DepthwiseConv1D", None, 3, {}), (9, 4), (1, 2, 1)),
    "3 dimensions": (("Conv3D", 6, 3, dict(padding="same", strides=2)), (5, 6, 4, 3), (1, 2, 3)),
    "activation": (("Conv2D", 6, 3, dict(activation="relu")), (6, 6, 3), (2, 2, 2)),
    "master alone": (("Conv2D", 6, 3), (6, 6, 3), (6, 0, 0)),
    "master without": (("Conv2D", 6, 3), (6, 6, 3), (0, 2, 4)),
    "master without, groups": (("Conv2D", 8, 3, dict(groups=4)), (6, 6, 4), (0, 1, 3)),
}


def build(kind, filters, kernel, options=None):
    import keras

    sizes = {} if filters is None else {"filters": filters}
    return getattr(keras.layers, kind)(
        **sizes, kernel_size=kernel, bias_initializer="normal", name="c", **(options or {})
    )


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
#: Likewise of the weights after two epochs (V4); measured: 3.6e-6.
TRAINED = 1e-5


def apart(one, other):
    """The largest difference, in terms of the largest number of the first array."""
    return np.abs(one - other).max() / np.abs(one).max()


#: The others of CASES are kernels of TensorFlow that the first ones use, too.
SOON = {"same, strides", "groups", "depthwise, strides", "causal, dilation", "master without"}


@pytest.mark.parametrize(
    "case", [c if c in SOON else pytest.param(c, marks=pytest.mark.full) for c in CASES]
)
def test_output_and_gradients_are_those_of_the_whole_layer(case):
    import keras

    described, shape, shares = CASES[case]
    keras.utils.set_random_seed(1)
    # A layer before it, so that the gradient of its input is needed. The gradient of a bias there
    # would be a sum over all positions, whose terms cancel each other.
    before = keras.layers.Dense(shape[-1], use_bias=False)
    model = keras.Sequential([keras.Input(shape), before, build(*described)])
    x = np.random.default_rng(1).standard_normal((4, *shape), np.float32)
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


def network():
    import keras

    keras.utils.set_random_seed(1)
    inputs = keras.Input((12, 12, 3))
    x = keras.layers.Conv2D(10, 3, padding="same", activation="relu", name="a")(inputs)
    x = keras.layers.MaxPooling2D()(x)
    shared = keras.layers.Conv2D(10, 3, padding="same", use_bias=False, name="shared")
    # Called twice in each pass, around a sum: the gradients of both calls add up.
    x = keras.layers.Add()([x, shared(shared(x))])
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.3, seed=3)(x)
    x = keras.layers.Conv2D(8, 3, strides=2, groups=2, kernel_regularizer="l2", name="b")(x)
    outputs = keras.layers.Dense(4)(keras.layers.Flatten()(x))
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


SHARES = {"a": (5, 3, 2), "shared": (2, 0, 8), "b": (1, 1, 0)}


def fitted(model):
    random = np.random.default_rng(5)
    x, y = random.random((64, 12, 12, 3), np.float32), np.arange(64) % 4
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return history.history["accuracy"], model.get_weights()


@pytest.mark.full
def test_a_training_gives_the_weights_and_the_accuracy_of_the_whole_model():
    """V4, with shared layers, normalization, dropout, momentum, clipping and regularization."""
    accuracy, weights = fitted(network())
    model = network()
    found = find_convolutions(model)
    layers = [convolution for _, convolution in found.layers.values()]
    assert [layer.input_gradient for layer in layers] == [False, True, True]
    with devices_of(layers, 3) as devices:
        install(list(found.layers.values()), devices)
        devices.apply_plan(plan_of(**SHARES))
        found = fitted(model)
    assert found[0] == accuracy
    for one, other in zip(weights, found[1], strict=True):
        assert one.dtype.kind != "f" or apart(one, other) <= TRAINED


def normalized(dtype, optimizer):
    """Convolutions before normalizations, so that the exact gradients of their biases are 0."""
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.Input((16, 16, 1), dtype=dtype)]
    for name, filters in (("a", 16), ("b", 24)):
        layers += [
            keras.layers.Conv2D(filters, 3, padding="same", name=name, dtype=dtype),
            keras.layers.BatchNormalization(dtype=dtype),
            keras.layers.ReLU(dtype=dtype),
        ]
    layers += [keras.layers.Flatten(dtype=dtype), keras.layers.Dense(3, dtype=dtype)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.get(optimizer), loss, jit_compile=False)
    return model


@pytest.mark.full
@pytest.mark.parametrize(("optimizer", "apart"), [("SGD", 1e-5), ("Adam", None)])
def test_a_divided_training_is_as_far_from_that_in_float64_as_a_whole_one(optimizer, apart):
    """Adam divides a gradient by its size, so rounding where it should be 0 moves the weights."""
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 320)
    x = random.normal(0.3 * y[:, None, None, None], 0.5, (320, 16, 16, 1))
    start = normalized("float32", optimizer).get_weights()

    def trained(dtype, divide=False):
        model = normalized(dtype, optimizer)
        model.set_weights([array.astype(dtype) for array in start])
        found = find_convolutions(model) if divide else None
        layers = [] if found is None else [described for _, described in found.layers.values()]
        with devices_of(layers, 2, batch=32) as devices:
            if found is not None:
                install(list(found.layers.values()), devices)
                devices.apply_plan(plan_of(a=(9, 7), b=(11, 13)))
            model.fit(x.astype(dtype), y, batch_size=32, epochs=12, shuffle=False, verbose=0)
        return np.concatenate([array.ravel() for array in model.get_weights()])

    exact = trained("float64")
    whole, divided = trained("float32"), trained("float32", divide=True)
    moved = np.linalg.norm(exact - np.concatenate([array.ravel() for array in start]))
    if apart is not None:
        assert np.linalg.norm(divided - whole) <= apart * moved
    assert np.linalg.norm(divided - exact) <= 3 * np.linalg.norm(whole - exact)


#: Seconds that a slow part takes, which is much more than the others take.
ALONE = 0.05


def small_layer():
    return Convolution(
        name="c",
        kind="convolution",
        input_shape=(8, 8, 4),
        kernel_size=(3, 3),
        channels=12,
        strides=(1, 1),
        dilation=(1, 1),
        padding="same",
    )


def test_the_master_alone_is_not_compared_with_devices_that_work_at_once(monkeypatch):
    """While all layers are whole, the others wait: that pace says what a whole layer takes."""

    class Alone(UnitRange):
        def __init__(self, layer, x, kernel):
            super().__init__(layer, x, kernel)
            time.sleep(ALONE if kernel.shape[-1] == layer.units else 0.0)

    layer = small_layer()
    monkeypatch.setattr(devices_module, "UnitRange", Alone)
    with devices_of([layer], 2) as devices:
        # Known before the first batch: in a window of one batch, few are made with whole layers.
        measured = devices.measure()
        assert measured.layers[0].whole > ALONE
        devices.disable_splitting()
        after = devices.divide_again(baseline_seconds=3.0, through=2.0)
        assert after.layers == measured.layers
        assert after.whole == 3.0
        rest = 2.0 - after.layers[0].whole
        assert after.divided == pytest.approx(rest + after.layers[0].divided)


@pytest.mark.parametrize(
    ("which", "baseline_seconds", "divides"),
    [("auto", 0.4, True), ("auto", 0.3, False), ("all", 0.3, True), (("c",), 0.3, True)],
)
def test_layers_are_divided_only_if_that_is_faster_than_the_model_as_it_is(
    monkeypatch, which, baseline_seconds, divides
):
    """Predicted are 0.25 s for the layer, and 0.1 s beside it."""
    planned = planning(c=(4, 8))
    monkeypatch.setattr(devices_module, "plan_layers", planned)
    devices = Devices([small_layer()], DeviceGroup(2, PATIENT), 8, which)
    devices.apply_plan(planned(rest=0.0, baseline_seconds=None))
    devices.disable_splitting()
    plan = devices.divide_again(baseline_seconds, through=0.6)
    assert (plan.whole, bool(plan.shares)) == (baseline_seconds, divides)
    assert plan.divided == pytest.approx(0.35 if divides else baseline_seconds)
    assert devices.plan == plan

"""Convolution layers of a Keras model on TensorFlow, computed by the devices of a run.

A layer's ``call`` is replaced on the layer's object; its weights, its place in the model and all
other layers stay as they are. So loss, regularization, optimizer and metrics see the same model.
The master computes bias and activation: they cost little, and so no bias has to be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distkeras_grid.model_parallel.devices import Devices
from distkeras_grid.model_parallel.geometry import Convolution


def install(layers: Sequence[tuple[Any, Convolution]], devices: Devices) -> None:
    """Let devices compute layers from now on."""
    for layer, described in layers:
        layer.call = _divided_call(layer, divided_convolution(described, devices))


def uninstall(layers: Sequence[tuple[Any, Convolution]]) -> None:
    """Let the layers compute by themselves again; arguments as of `install`."""
    for layer, _ in layers:
        del layer.call


def _divided_call(layer: Any, convolve: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    import keras
    import tensorflow as tf

    def call(inputs: Any) -> Any:
        # Convert to a tensor: outside a compiled call, Keras would pass on the variable.
        outputs = convolve(inputs, tf.convert_to_tensor(layer.kernel))
        if layer.use_bias:
            outputs = keras.ops.add(outputs, layer.bias)
        return outputs if layer.activation is None else layer.activation(outputs)

    return call


def divided_convolution(layer: Convolution, devices: Devices) -> Callable[[Any, Any], Any]:
    """Return a function of input and kernel tensors with the gradient that devices compute."""
    import tensorflow as tf

    def forward(x: Any, kernel: Any) -> tuple[Any, Any]:
        y, number = devices.forward(layer.name, x, kernel)
        return y, np.int64(number)

    def backward(number: Any, x: Any, kernel: Any, dy: Any) -> Any:
        dx = devices.backward(layer.name, int(number), x, kernel, dy)
        return np.zeros(0, np.float32) if dx is None else dx

    def kernel_gradient(number: Any) -> Any:
        return devices.kernel_gradient(layer.name, int(number))

    def convolve(x: Any, kernel: Any) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        y, number = tf.numpy_function(forward, [x, kernel], [tf.float32, tf.int64])
        y.set_shape((x.shape[0], *layer.output_shape))

        def gradients(dy: Any) -> tuple[Any, Any]:
            dx = tf.numpy_function(backward, [number, x, kernel, dy], tf.float32)
            # A separate operation, so that what needs dx does not wait for it.
            with tf.control_dependencies([dx]):
                gradient = tf.numpy_function(kernel_gradient, [number], tf.float32)
            gradient.set_shape(kernel.shape)
            if not layer.input_gradient:
                return tf.zeros_like(x), gradient
            dx.set_shape(x.shape)
            return dx, gradient

        return y, gradients

    differentiable: Callable[[Any, Any], Any] = tf.custom_gradient(convolve)
    return differentiable

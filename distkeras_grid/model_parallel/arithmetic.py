"""A part of a convolution, forward and backward, on TensorFlow's own kernels.

Master and devices compute with the same code. Each call is a single kernel of TensorFlow, outside
of any graph: a compiled function would need a thread from a pool whose only thread may be waiting
for another device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.rpc import Array
from distkeras_grid.rows import ALIGNMENT


class UnitRange:
    """Some units of a layer, for one batch.

    `x`: the input channels that these units need, shape ``(batch, *spatial, channels)``.
    `kernel`: kernel of these units; its shape is that of `Convolution.kernel_shape`.
    """

    def __init__(self, layer: Convolution, x: Array, kernel: Array) -> None:
        self._layer = layer
        self._groups = _groups(layer, x.shape[-1])
        rank = len(layer.kernel_size)
        # Convolutions over one dimension are computed over two, one of which has length 1.
        self._flat = rank == 1
        self._x = _tensor(x[:, None] if self._flat else x)
        self._kernel = _tensor(kernel[None] if self._flat else kernel)
        self._gradients: tuple[Any, Any] | None = None

    def output(self) -> Array:
        """Return the output channels of these units."""
        return self._array(self._forward(self._padded(), self._kernel))

    def input_gradient(self, dy: Array) -> Array:
        """Return the part of the input's gradient that comes through these units."""
        return self._array(self._unpadded(self._backward(0, self._tensor_of(dy))))

    def kernel_gradient(self, dy: Array) -> Array:
        """Return the gradient of the kernel; `dy` as for `input_gradient`."""
        gradient = self._backward(1, self._tensor_of(dy))
        return _ndarray(gradient)[0] if self._flat else _ndarray(gradient)

    # Settings of TensorFlow

    @property
    def _strides(self) -> tuple[int, ...]:
        return (1, *((1,) if self._flat else ()), *self._layer.strides, 1)

    @property
    def _dilation(self) -> tuple[int, ...]:
        return (*((1,) if self._flat else ()), *self._layer.dilation)

    @property
    def _padding(self) -> str:
        return "SAME" if self._layer.padding == "same" else "VALID"

    @property
    def _margin(self) -> int:
        """Zeros before the first row of a causal convolution."""
        if self._layer.padding != "causal":
            return 0
        return self._layer.dilation[0] * (self._layer.kernel_size[0] - 1)

    def _padded(self) -> Any:
        import tensorflow as tf

        if not self._margin:
            return self._x
        return tf.pad(self._x, [[0, 0], [0, 0], [self._margin, 0], [0, 0]])

    def _unpadded(self, gradient: Any) -> Any:
        return gradient[:, :, self._margin :] if self._margin else gradient

    def _tensor_of(self, dy: Array) -> Any:
        return _tensor(dy[:, None] if self._flat else dy)

    def _array(self, tensor: Any) -> Array:
        array = _ndarray(tensor)
        return array[:, 0] if self._flat else array

    # Kernels of TensorFlow

    def _forward(self, x: Any, kernel: Any) -> Any:
        import tensorflow as tf

        if self._layer.kind == "depthwise":
            return tf.nn.depthwise_conv2d(
                x, kernel, self._strides, self._padding, dilations=self._dilation
            )
        outputs = [
            tf.nn.convolution(a, b, self._strides[1:-1], self._padding, dilations=self._dilation)
            for a, b in zip(self._split(x), self._split(kernel), strict=True)
        ]
        return outputs[0] if len(outputs) == 1 else tf.concat(outputs, -1)

    def _backward(self, which: int, dy: Any) -> Any:
        """Return the gradient of the padded input (0) or of the kernel (1)."""
        import tensorflow as tf

        if max(self._dilation) > 1:
            return self._both(dy)[which]
        compute = (self._to_input, self._to_kernel)[which]
        if self._groups == 1 or self._layer.kind == "depthwise":
            return compute(self._padded(), self._kernel, dy)
        parts = zip(self._split(self._padded()), self._split(self._kernel), strict=True)
        gradients = [compute(*part, g) for part, g in zip(parts, self._split(dy), strict=True)]
        return tf.concat(gradients, -1)

    def _both(self, dy: Any) -> tuple[Any, Any]:
        """Differentiate the forward pass; TensorFlow dilates by rearranging the input."""
        import tensorflow as tf

        if self._gradients is None:
            x = self._padded()
            with tf.GradientTape() as tape:
                tape.watch([x, self._kernel])
                y = self._forward(x, self._kernel)
            self._gradients = tuple(tape.gradient(y, [x, self._kernel], dy))
        return self._gradients

    def _to_input(self, x: Any, kernel: Any, dy: Any) -> Any:
        return self._raw("Input")(input_sizes=x.shape, filter=kernel, out_backprop=dy)

    def _to_kernel(self, x: Any, kernel: Any, dy: Any) -> Any:
        return self._raw("Filter")(input=x, filter_sizes=kernel.shape, out_backprop=dy)

    def _raw(self, towards: str) -> Callable[..., Any]:
        import tensorflow as tf

        if self._layer.kind == "depthwise":
            name = f"DepthwiseConv2dNativeBackprop{towards}"
        elif len(self._layer.kernel_size) == 3:
            name = f"Conv3DBackprop{towards}V2"
        else:
            name = f"Conv2DBackprop{towards}"
        operation = getattr(tf.raw_ops, name)
        return lambda **tensors: operation(
            **tensors, strides=list(self._strides), padding=self._padding
        )

    def _split(self, tensor: Any) -> list[Any]:
        import tensorflow as tf

        return [tensor] if self._groups == 1 else tf.split(tensor, self._groups, -1)


def _groups(layer: Convolution, channels: int) -> int:
    """Return the groups of a part with so many input channels."""
    return channels * layer.groups // layer.input_shape[-1]


def _tensor(array: Array) -> Any:
    """Return a tensor, which shares the array's memory if TensorFlow can read it there."""
    import tensorflow as tf

    flags = array.flags
    if array.ctypes.data % ALIGNMENT or not (flags.c_contiguous and flags.writeable):
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _ndarray(tensor: Any) -> Array:
    """Return the tensor's own memory, or a copy of what is on a GPU."""
    import tensorflow as tf

    if "CPU" not in tensor.device:
        with tf.device("CPU:0"):
            tensor = tf.identity(tensor)
    return np.asarray(memoryview(tensor))

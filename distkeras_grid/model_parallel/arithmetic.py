"""Some output channels of a convolution, forward and backward, on TensorFlow's own kernels.

Master and devices compute with the same code. Each call is a single kernel of TensorFlow, outside
of any graph: a compiled function would need a thread from a pool whose only thread may be waiting
for another device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distkeras_grid.engine.tensorflow import to_tensor
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.rpc import Array


class PartialConvolution:
    """Some output channels of a layer, for one batch.

    `x`: the whole input, shape ``(batch, height, width, channels)``.
    `kernel`: kernel of these channels; its shape is that of `Convolution.kernel_shape`.
    """

    def __init__(self, layer: Convolution, x: Array, kernel: Array) -> None:
        self._options: dict[str, Any] = {
            "strides": [1, *layer.strides, 1],
            "padding": layer.padding.upper(),
        }
        self._x, self._kernel = to_tensor(x), to_tensor(kernel)

    def output(self) -> Array:
        """Return the output channels."""
        import tensorflow as tf

        return _ndarray(tf.nn.conv2d(self._x, self._kernel, **self._options))

    def input_gradient(self, dy: Array) -> Array:
        """Return the part of the input's gradient that comes through these channels."""
        import tensorflow as tf

        return _ndarray(
            tf.raw_ops.Conv2DBackpropInput(
                input_sizes=self._x.shape,
                filter=self._kernel,
                out_backprop=to_tensor(dy),
                **self._options,
            )
        )

    def kernel_gradient(self, dy: Array) -> Array:
        """Return the gradient of the kernel; `dy` as for `input_gradient`."""
        import tensorflow as tf

        return _ndarray(
            tf.raw_ops.Conv2DBackpropFilter(
                input=self._x,
                filter_sizes=self._kernel.shape,
                out_backprop=to_tensor(dy),
                **self._options,
            )
        )


def _ndarray(tensor: Any) -> Array:
    """Return the tensor's own memory, or a copy of what is on a GPU."""
    import tensorflow as tf

    if "CPU" not in tensor.device:
        with tf.device("CPU:0"):
            tensor = tf.identity(tensor)
    return np.asarray(memoryview(tensor))

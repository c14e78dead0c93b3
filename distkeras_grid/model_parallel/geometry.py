"""A convolution as numbers: shapes and bytes of each device's part.

The output channels of a convolution do not depend on each other. So a device that has the whole
input and some of the kernels computes some of the channels, and no other result is needed.

Equations (X input, W kernel, Y output, d a device, all arrays ``float32``)::

    forward    Y = [Y_0 | Y_1 | ...],  Y_d = X * W_d
    backward   dX = sum_d dX_d,  dX_d = dY_d * W_d transposed,  dW_d from X and dY_d

Marques, Falcao and Alexandre, Distributed Learning of CNNs on Heterogeneous CPU/GPU Architectures,
Applied Artificial Intelligence 32 (2018).
"""

from __future__ import annotations

import math
from typing import Literal

from distkeras_grid.frozen_struct import FrozenStruct

#: Bytes of a number on the wire.
NUMBER = 4


class Convolution(FrozenStruct, frozen=True):
    """A ``Conv2D``, as far as its arithmetic goes; its output channels are divided.

    Examples
    --------
    >>> layer = Convolution(name="c", input_shape=(32, 32, 3), kernel_size=(5, 5), channels=50,
    ...     strides=(2, 2), padding="same")
    >>> layer.output_shape, layer.kernel_shape(20)
    ((16, 16, 50), (5, 5, 3, 20))
    """

    name: str  # Name of the layer in its model
    input_shape: tuple[int, int, int]  # Height, width and channels of the input
    kernel_size: tuple[int, int]
    channels: int  # Output channels
    strides: tuple[int, int]
    padding: Literal["same", "valid"]  # As in Keras
    # Whether the gradient with respect to the input is needed. It is not if nothing before the
    # layer is trained.
    input_gradient: bool = True

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Height, width and channels of the output."""
        sizes = zip(self.input_shape[:2], self.kernel_size, self.strides, strict=True)
        return (*(self._length(*each) for each in sizes), self.channels)

    def kernel_shape(self, channels: int) -> tuple[int, ...]:
        """Return the shape of the kernel of so many output channels."""
        return (*self.kernel_size, self.input_shape[-1], channels)

    def input_bytes(self, batch: int) -> int:
        """Return the bytes of the input; also those of its gradient."""
        return NUMBER * batch * math.prod(self.input_shape)

    def output_bytes(self, batch: int, channels: int) -> int:
        """Return the bytes of some channels of the output; also those of their gradient."""
        return NUMBER * batch * math.prod(self.output_shape[:2]) * channels

    def weight_bytes(self, channels: int) -> int:
        """Return the bytes of the kernel of some output channels; also those of its gradient."""
        return NUMBER * math.prod(self.kernel_shape(channels))

    def _length(self, size: int, kernel: int, stride: int) -> int:
        return -(-(size if self.padding == "same" else size - kernel + 1) // stride)

"""A convolution as numbers: what can be divided, and the bytes and operations of each part.

The output channels of a convolution do not depend on each other. So a device that has the whole
input and some of the kernels computes some of the channels, and no other result is needed. With
groups, a group of channels also needs only its own channels of the input. A *unit* is the smallest
part that a device can compute: an output channel, or a group.

Equations (X input, W kernel, Y output, d a device, all arrays ``float32``)::

    forward    Y = [Y_0 | Y_1 | ...],  Y_d = X * W_d
    backward   dX = sum_d dX_d,  dX_d = dY_d * W_d transposed,  dW_d from X and dY_d

Marques, Falcao and Alexandre, Distributed Learning of CNNs on Heterogeneous CPU/GPU Architectures,
Applied Artificial Intelligence 32 (2018).
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.frozen_struct import FrozenStruct

#: Bytes of a number on the wire.
NUMBER = 4

Kind: TypeAlias = Literal["convolution", "depthwise"]
Padding: TypeAlias = Literal["same", "valid", "causal"]


class Convolution(FrozenStruct, frozen=True):
    """A convolution layer, as far as its arithmetic goes; channels come last.

    Examples
    --------
    >>> layer = Convolution(name="c", kind="convolution", input_shape=(32, 32, 3),
    ...     kernel_size=(5, 5), channels=50, strides=(1, 1), dilation=(1, 1), padding="same")
    >>> layer.units, layer.output_shape, layer.multiplications(batch=1, units=50)
    (50, (32, 32, 50), 3840000)
    """

    name: str  # Name of the layer in its model
    kind: Kind  # Whether each output channel sees all input channels of its group, or a single one
    input_shape: tuple[int, ...]  # Spatial sizes and channels of the input, without the batch
    kernel_size: tuple[int, ...]  # Spatial sizes of the kernel
    channels: int  # Output channels
    strides: tuple[int, ...]  # strides and dilation: Stride and dilation for each spatial dimension
    dilation: tuple[int, ...]
    padding: Padding  # As in Keras
    # Number of groups of channels; for a depthwise convolution, the number of input channels
    groups: int = 1
    # Whether the gradient with respect to the input is needed. It is not if nothing before the
    # layer is trained.
    input_gradient: bool = True

    def __post_init__(self) -> None:
        rank = len(self.kernel_size)
        numbers = (*self.input_shape, *self.kernel_size, *self.strides, *self.dilation)
        fits = (
            1 <= rank <= 3
            and len(self.strides) == len(self.dilation) == len(self.input_shape) - 1 == rank
            and min(*numbers, self.channels, self.groups) >= 1
            and self.input_shape[-1] % self.groups == 0
            and self.channels % self.groups == 0
            and (self.kind == "convolution" or self.groups == self.input_shape[-1])
            and (self.padding != "causal" or rank == 1)
        )
        if not fits or min(self.output_shape) < 1:
            raise ConfigurationError(f"These numbers are not a convolution. Received: {self!r}.")

    @property
    def units(self) -> int:
        """Number of parts that devices may compute separately: output channels, or groups."""
        if self.kind == "convolution" and self.groups == 1:
            return self.channels
        return self.groups

    @property
    def unit_channels(self) -> int:
        """Number of output channels of a unit."""
        return self.channels // self.units

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Spatial sizes and channels of the output, without the batch."""
        sizes = zip(
            self.input_shape[:-1], self.kernel_size, self.strides, self.dilation, strict=True
        )
        return (*(self._length(*each) for each in sizes), self.channels)

    @property
    def unit_weights(self) -> int:
        """Number of weights in the kernel of a unit."""
        inputs = self.input_shape[-1] // self.groups
        return math.prod(self.kernel_size) * inputs * self.unit_channels

    @property
    def weights(self) -> int:
        """Number of weights in the whole kernel."""
        return self.unit_weights * self.units

    def kernel_shape(self, units: int) -> tuple[int, ...]:
        """Return the shape of the kernel of so many units, in the order of Keras."""
        inputs = self.input_shape[-1] // self.groups
        if self.kind == "depthwise":
            return (*self.kernel_size, units, self.unit_channels)
        return (*self.kernel_size, inputs, units * self.unit_channels)

    def input_part(self, units: range) -> slice:
        """Return the input channels that some units need: all, or those of their groups."""
        if self.groups == 1:
            return slice(0, self.input_shape[-1])
        return _scaled(units, self.input_shape[-1] // self.groups)

    def output_part(self, units: range) -> slice:
        """Return the output channels of some units."""
        return _scaled(units, self.unit_channels)

    def kernel_part(self, units: range) -> tuple[slice, ...]:
        """Return the index of some units in the kernel."""
        everything = (slice(None),) * len(self.kernel_size)
        if self.kind == "depthwise":
            return (*everything, _scaled(units, 1), slice(None))
        return (*everything, slice(None), self.output_part(units))

    def multiplications(self, batch: int, units: int) -> int:
        """Return the multiplications of the forward pass."""
        return batch * math.prod(self.output_shape[:-1]) * self.unit_weights * units

    def input_bytes(self, batch: int, units: int) -> int:
        """Return the bytes of the input that some units need; also those of its gradient."""
        if not units:
            return 0
        share = 1.0 if self.groups == 1 else units / self.groups
        return round(NUMBER * batch * math.prod(self.input_shape) * share)

    def output_bytes(self, batch: int, units: int) -> int:
        """Return the bytes of the output of some units; also those of its gradient."""
        return NUMBER * batch * math.prod(self.output_shape[:-1]) * units * self.unit_channels

    def weight_bytes(self, units: int) -> int:
        """Return the bytes of the kernel of some units; also those of its gradient."""
        return NUMBER * self.unit_weights * units

    def _length(self, size: int, kernel: int, stride: int, dilation: int) -> int:
        if self.padding == "valid":
            size -= dilation * (kernel - 1)
        return -(-size // stride)


def _scaled(units: range, factor: int) -> slice:
    return slice(units.start * factor, units.stop * factor)

"""A device of divided convolutions: it computes the units that each call asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.model_parallel.arithmetic import UnitRange
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.rpc import Answers, Array


class ConvolutionModule:
    """Computes units of layers for the calls of its master."""

    CALLS: ClassVar[frozenset[str]] = frozenset({"open", "forward", "backward", "echo"})

    def __init__(self) -> None:
        self._layers: dict[str, Convolution] = {}
        self._parts: dict[str, tuple[int, UnitRange]] = {}

    def open(self, layers: Sequence[Mapping[str, Any]]) -> Answers:
        """Take the layers for which the master may ask."""
        self._layers = {each.name: each for each in map(Convolution.from_json, layers)}
        yield []

    def echo(self, array: Array) -> Answers:
        """Send an array back; this measures the link."""
        yield [array]

    def forward(self, x: Array, kernel: Array, layer: str, number: int) -> Answers:
        """Return the output of some units; `number` of this pass through the layer."""
        part = self._part(layer, x, kernel)
        self._parts[layer] = number, part
        yield [part.output()]

    def backward(self, dy: Array, *operands: Array, layer: str, number: int) -> Answers:
        """Return the input's gradient if it is needed, and then the kernel's.

        `operands`: input and kernel, if the device has kept another pass.
        """
        newest, part = self._parts.get(layer, (-1, None))
        if operands:
            part = self._part(layer, *operands)
        elif newest != number:
            part = None
        if part is None:
            raise RemoteProtocolError(f"No pass {number!r} of layer {layer!r} is open.")
        # The master goes on with the first, while the second one is computed.
        yield [part.input_gradient(dy)] if self._layers[layer].input_gradient else []
        yield [part.kernel_gradient(dy)]

    def _part(self, name: str, x: Array, kernel: Array) -> UnitRange:
        """Check the shapes of the operands, and return the part of a layer."""
        layer = self._layers[name]
        channel = -2 if layer.kind == "depthwise" else -1
        count = kernel.shape[channel] if len(kernel.shape) > 1 else 0
        units = count if layer.kind == "depthwise" else count // layer.unit_channels
        fits = kernel.shape == layer.kernel_shape(units) and x.shape[1:-1] == layer.input_shape[:-1]
        inputs = layer.input_part(range(units))
        if not fits or not 0 < units <= layer.units or x.shape[-1] != inputs.stop - inputs.start:
            raise RemoteProtocolError(
                f"Input and kernel of {name!r} do not fit. Received: {x.shape} and {kernel.shape}."
            )
        return UnitRange(layer, x, kernel)

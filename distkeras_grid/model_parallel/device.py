"""A device of divided convolutions: it computes the output channels that each call asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.model_parallel.arithmetic import PartialConvolution
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.rpc import Answers, Array


class ConvolutionModule:
    """Computes channels of layers for the calls of its master."""

    CALLS: ClassVar[frozenset[str]] = frozenset({"open", "forward", "backward", "echo"})

    def __init__(self) -> None:
        self._layers: dict[str, Convolution] = {}
        # Of each layer its newest pass.
        self._passes: dict[str, tuple[int, PartialConvolution]] = {}

    def open(self, layers: Sequence[Mapping[str, Any]]) -> Answers:
        """Take the layers for which the master may ask."""
        self._layers = {each.name: each for each in map(Convolution.from_json, layers)}
        yield []

    def echo(self, array: Array) -> Answers:
        """Send an array back; this measures the link."""
        yield [array]

    def forward(self, x: Array, kernel: Array, layer: str, number: int) -> Answers:
        """Return the output of some channels; `number` of this pass through the layer."""
        convolution = self._layers[layer]
        channels = kernel.shape[-1]
        fits = kernel.shape == convolution.kernel_shape(channels)
        if not fits or x.shape[1:] != convolution.input_shape:
            raise RemoteProtocolError(
                f"Input and kernel of {layer!r} do not fit. Received: {x.shape} and {kernel.shape}."
            )
        part = PartialConvolution(convolution, x, kernel)
        self._passes[layer] = number, part
        yield [part.output()]

    def backward(self, dy: Array, layer: str, number: int) -> Answers:
        """Return the input's gradient if it is needed, and then the kernel's."""
        newest, part = self._passes.get(layer, (-1, None))
        if part is None or newest != number:
            raise RemoteProtocolError(f"No pass {number!r} of layer {layer!r} is open.")
        # The master goes on with the first, while the second one is computed.
        yield [part.input_gradient(dy)] if self._layers[layer].input_gradient else []
        yield [part.kernel_gradient(dy)]

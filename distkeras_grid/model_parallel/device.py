"""A device of divided convolutions: it computes the output channels that each call asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from distkeras_grid.model_parallel.arithmetic import PartialConvolution
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.rpc import Answers, Array


class ConvolutionModule:
    """Computes channels of layers for the calls of its master."""

    CALLS: ClassVar[frozenset[str]] = frozenset({"open", "forward", "backward", "echo"})

    def __init__(self) -> None:
        self._layers: dict[str, Convolution] = {}
        # The newest pass of each layer; the master asks for no gradient of an older one.
        self._passes: dict[str, PartialConvolution] = {}

    def open(self, layers: Sequence[Mapping[str, Any]]) -> Answers:
        """Take the layers for which the master may ask."""
        self._layers = {each.name: each for each in map(Convolution.from_json, layers)}
        yield []

    def echo(self, array: Array) -> Answers:
        """Send an array back; this measures the link."""
        yield [array]

    def forward(self, x: Array, kernel: Array, layer: str) -> Answers:
        """Return the output of some channels."""
        part = self._passes[layer] = PartialConvolution(self._layers[layer], x, kernel)
        yield [part.output()]

    def backward(self, dy: Array, layer: str) -> Answers:
        """Return the input's gradient if it is needed, and then the kernel's."""
        part = self._passes.pop(layer)
        # The master goes on with the first, while the second one is computed.
        yield [part.input_gradient(dy)] if self._layers[layer].input_gradient else []
        yield [part.kernel_gradient(dy)]

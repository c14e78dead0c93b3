"""The device's side: computes the units that the master asks for, until the master releases it."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.model_parallel.arithmetic import Array, UnitRange
from distkeras_grid.model_parallel.duplex_channel import Duplex
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.messages import (
    Backward,
    DeviceFailure,
    Echo,
    FinishDevice,
    Forward,
    ForwardResult,
    InputGradient,
    KernelGradient,
)
from distkeras_grid.parameter_server.array_channel import ArrayChannel
from distkeras_grid.parameter_server.messages import LONGEST_FAILURE

#: Seconds to send the last answers.
FINISH_SECONDS = 5.0


class ConvolutionWorker:
    """Computes the units that one message after the other asks for."""

    def __init__(self, layers: Sequence[Convolution]) -> None:
        self._layers: Mapping[str, Convolution] = {layer.name: layer for layer in layers}
        self._parts: dict[str, tuple[int, UnitRange]] = {}

    def answer(self, message: msgspec.Struct, arrays: list[Array], duplex: Duplex) -> None:
        """Compute, and send the results."""
        if isinstance(message, Echo):
            duplex.send(message, arrays)
        elif isinstance(message, Forward):
            self._forward(message, arrays, duplex)
        elif isinstance(message, Backward):
            self._backward(message, arrays, duplex)
        else:
            raise RemoteProtocolError(f"A request is expected. Received: {message!r}.")

    def _forward(self, message: Forward, arrays: list[Array], duplex: Duplex) -> None:
        part = self._part(message.layer, arrays)
        self._parts[message.layer] = message.call, part
        clock = time.perf_counter()
        y = part.output()
        duplex.send(ForwardResult(seconds=self._elapsed(clock)), [y])

    def _backward(self, message: Backward, arrays: list[Array], duplex: Duplex) -> None:
        number, part = self._parts.get(message.layer, (-1, None))
        if len(arrays) > 1:
            part = self._part(message.layer, arrays[1:])
        elif number != message.call:
            part = None
        if part is None or not arrays:
            raise RemoteProtocolError(
                f"Input and kernel of a pass are expected. Received: {message!r}."
            )
        dy = arrays[0]
        clock = time.perf_counter()
        dx = [part.input_gradient(dy)] if self._layers[message.layer].input_gradient else []
        # The master goes on with this, while the kernel's gradient is computed.
        duplex.send(InputGradient(seconds=self._elapsed(clock)), dx)
        clock = time.perf_counter()
        gradient = part.kernel_gradient(dy)
        duplex.send(KernelGradient(seconds=self._elapsed(clock)), [gradient])

    def _part(self, name: str, operands: list[Array]) -> UnitRange:
        """Check the shapes of the operands, and return the part of a layer."""
        layer = self._layers.get(name)
        if layer is None or len(operands) != 2:
            raise RemoteProtocolError(
                f"A layer of the model with input and kernel is expected. Received: {name!r} with "
                f"{len(operands)} arrays."
            )
        x, kernel = operands
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

    def _elapsed(self, since: float) -> float:
        return time.perf_counter() - since


class RequestHandler(Protocol):
    """What answers a master's requests."""

    def answer(self, message: msgspec.Struct, arrays: list[Array], duplex: Duplex) -> None:
        """Compute, and send the results."""
        ...


def serve(channel: ArrayChannel, computer: RequestHandler) -> bool:
    """Answer the master's requests until it releases the device, or the line ends.

    The next request is received while one is computed, and answers are sent meanwhile.
    """
    # The queue stays short even if this device is slow: the master waits for its answers.
    inbox: queue.SimpleQueue[tuple[msgspec.Struct, list[Array]] | None] = queue.SimpleQueue()
    duplex = Duplex(channel, lambda *item: inbox.put(item), lambda _: inbox.put(None))
    duplex.start()
    try:
        while (request := inbox.get()) is not None:
            if isinstance(request[0], FinishDevice):
                return True
            computer.answer(*request, duplex)
        return False
    except Exception as error:
        text = str(error)[:LONGEST_FAILURE]
        duplex.send(DeviceFailure(error=type(error).__name__, message=text))
        raise
    finally:
        duplex.finish(FINISH_SECONDS)

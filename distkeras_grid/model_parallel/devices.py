"""The master's side of divided convolutions: assigns the output channels, and joins the results.

Who computes what is measured and planned once, before the first batch.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from distkeras_grid.errors import ConfigurationError, RemoteProtocolError
from distkeras_grid.model_parallel.arithmetic import PartialConvolution
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.proportional_split import divide, ranges
from distkeras_grid.model_parallel.rpc import Answer, Array
from distkeras_grid.model_parallel.time_model import (
    Layers,
    LayerTimes,
    NetworkLink,
    SplitPlan,
    UnitTime,
    divided_seconds,
    plan_layers,
)
from distkeras_grid.rows import aligned_empty

#: Number of passes in a median, after one for warm-up.
OBSERVATIONS = 5
#: Bytes of the array that is sent back and forth to measure the line; larger than TCP's buffers.
ECHO_BYTES = 4 << 20


@dataclass
class _Pass:
    """One pass through a layer: who has which channels, and what is still to come.

    `forward` and `backward` are the seconds of the devices that have answered.
    """

    number: int
    channels: tuple[range, ...]
    forward: dict[int, float] = field(default_factory=dict)
    backward: dict[int, float] = field(default_factory=dict)
    gradients: dict[int, Future[Answer]] = field(default_factory=dict)
    own: Array | None = None

    @property
    def others(self) -> list[int]:
        """Devices with channels, without the master."""
        return [device for device, channels in enumerate(self.channels) if device and channels]

    def pace(self, device: int) -> UnitTime | None:
        """Return how long a device took for a channel; None if it has none."""
        count = len(self.channels[device])
        if not count:
            return None
        # A clock that does not move would make a device infinitely fast.
        forward, backward = (max(each[device], 1e-9) for each in (self.forward, self.backward))
        return UnitTime(forward=forward / count, backward=backward / count)


class Devices:
    """The master and the devices of its group, as one device that computes convolutions.

    `layers`: layers that may be divided, each of which a batch passes once.
    """

    def __init__(
        self, layers: Sequence[Convolution], group: DeviceGroup, batch: int, which: Layers = "auto"
    ) -> None:
        self._layers = {layer.name: layer for layer in layers}
        self._group = group
        self._batch = batch
        self._which: Layers = which
        # The newest pass of each layer.
        self._passes: dict[str, _Pass] = {}
        self._numbers = itertools.count(1)
        self._shares = {name: self._all_mine(layer) for name, layer in self._layers.items()}
        self._plan = SplitPlan(layers=())

    # Decisions

    def measure(self) -> SplitPlan:
        """Measure the link and the layers, on all devices at once and on the master; then plan.

        Devices on one machine slow each other down, so a layer that is divided is measured on all
        at the same time, and a whole one on the master while the others wait.
        """
        link, random = self._measured_link(), np.random.default_rng(0)
        times = {}
        for name, layer in self._layers.items():
            shapes = (
                (self._batch, *layer.input_shape),
                layer.kernel_shape(layer.channels),
                (self._batch, *layer.output_shape),
            )
            x, kernel, dy = (random.standard_normal(shape, np.float32) for shape in shapes)
            shares = self._shares[name] = divide(layer.channels, [1.0] * self._group.count)
            seconds, paces = self._timed_passes(name, x, kernel, dy)
            expected = divided_seconds(layer, self._batch, shares, paces, link)
            self._shares[name] = self._all_mine(layer)
            _, (alone, *_) = self._timed_passes(name, x, kernel, dy)
            times[name] = LayerTimes(
                paces=(paces[0] or alone, *paces[1:]),
                alone=alone,
                overhead=max(0.0, seconds - expected),
            )
        plan = plan_layers(list(self._layers.values()), self._batch, times, link, self._which)
        self.apply_plan(plan)
        return plan

    def decide(self, whole: float, divided: float) -> SplitPlan:
        """Divide as planned, unless a batch of the model as it is takes no longer; both in [s]."""
        self.apply_plan(self._plan.decided(self._which, whole, divided))
        return self._plan

    def apply_plan(self, plan: SplitPlan) -> None:
        """Divide as a plan says, from the next pass of each layer on."""
        self._plan = plan
        self._shares |= {layer.layer: layer.shares for layer in plan.layers}

    def _timed_passes(
        self, name: str, x: Array, kernel: Array, dy: Array
    ) -> tuple[float, list[UnitTime | None]]:
        """Pass through a layer as it is shared now; return the time [s] and each device's pace."""
        taken, paces = [], []
        for _ in range(1 + OBSERVATIONS):
            clock = time.perf_counter()
            _, number = self.forward(name, x, kernel)
            this = self._passes[name]
            self.backward(name, number, x, kernel, dy)
            self.kernel_gradient(name, number)
            taken.append(time.perf_counter() - clock)
            paces.append([this.pace(device) for device in range(self._group.count)])
        medians = [_median(each) for each in zip(*paces[1:], strict=True)]
        return statistics.median(taken[1:]), medians

    def _all_mine(self, layer: Convolution) -> tuple[int, ...]:
        return (layer.channels, *[0] * (self._group.count - 1))

    def _measured_link(self) -> NetworkLink:
        others = len(self._group.others)
        if not others:
            return NetworkLink(bandwidth=float("inf"))
        small, large = np.zeros(1, np.float32), np.zeros(ECHO_BYTES // 4, np.float32)
        latency = statistics.median(self._echo(small) for _ in range(OBSERVATIONS)) / 2
        self._echo(large)
        seconds = statistics.median(self._echo(large) for _ in range(OBSERVATIONS))
        moved = 2 * ECHO_BYTES * others
        return NetworkLink(bandwidth=moved / max(seconds - 2 * latency, 1e-9), latency=latency)

    def _echo(self, array: Array) -> float:
        clock = time.perf_counter()
        self._group.each("echo", [array] * len(self._group.others))
        return time.perf_counter() - clock

    # Passes through a layer

    def forward(self, name: str, x: Array, kernel: Array) -> tuple[Array, int]:
        """Return the output of a layer, without bias, and the number of the pass.

        `x`: input of the layer, shape ``(rows, height, width, channels)``.
        """
        layer = self._layers[name]
        this = self._passes[name] = _Pass(next(self._numbers), ranges(self._shares[name]))
        asked = {
            device: self._group.call(
                device, "forward", x, kernel[..., _slice(this.channels[device])], layer=name
            )[0]
            for device in this.others
        }
        own = None
        if this.channels[0]:
            clock = time.perf_counter()
            own = self._own_part(layer, this, x, kernel).output()
            this.forward[0] = time.perf_counter() - clock
        if own is not None and not asked:
            return own, this.number
        y = aligned_empty((len(x), *layer.output_shape))
        if own is not None:
            y[..., _slice(this.channels[0])] = own
        for device, future in asked.items():
            part = y[..., _slice(this.channels[device])]
            part[:] = self._answer(device, future, part.shape, this.forward)
        return y, this.number

    def backward(self, name: str, number: int, x: Array, kernel: Array, dy: Array) -> Array | None:
        """Return the gradient of a pass's input; None if it is not needed.

        `kernel_gradient` returns the kernel's gradient: it is received while the next layer's
        gradient is sent.
        """
        layer, this = self._layers[name], self._open(name, number)
        first = {}
        for device in this.others:
            # A copy: TensorFlow may reuse the memory before the array is sent.
            part = np.array(dy[..., _slice(this.channels[device])])
            first[device], this.gradients[device] = self._group.call(
                device, "backward", part, answers=2, layer=name
            )
        dx = None
        if this.channels[0]:
            clock = time.perf_counter()
            convolution = self._own_part(layer, this, x, kernel)
            own = dy[..., _slice(this.channels[0])]
            dx = convolution.input_gradient(own) if layer.input_gradient else None
            this.own = convolution.kernel_gradient(own)
            this.backward[0] = time.perf_counter() - clock
        if layer.input_gradient and first:
            total = aligned_empty(x.shape)
            total[:] = 0.0 if dx is None else dx
            for device, future in first.items():
                total += self._answer(device, future, x.shape, this.backward)
            return total
        return dx

    def kernel_gradient(self, name: str, number: int) -> Array:
        """Return the gradient of the kernel, after `backward` for the same pass."""
        layer, this = self._layers[name], self._open(name, number)
        del self._passes[name]
        if this.own is not None and not this.others:
            return this.own
        gradient = aligned_empty(layer.kernel_shape(layer.channels))
        if this.own is not None:
            gradient[..., _slice(this.channels[0])] = this.own
        for device, future in this.gradients.items():
            channels = this.channels[device]
            shape = layer.kernel_shape(len(channels))
            gradient[..., _slice(channels)] = self._answer(device, future, shape, this.backward)
        return gradient

    def _own_part(
        self, layer: Convolution, this: _Pass, x: Array, kernel: Array
    ) -> PartialConvolution:
        return PartialConvolution(layer, x, kernel[..., _slice(this.channels[0])])

    def _open(self, name: str, number: int) -> _Pass:
        this = self._passes.get(name)
        if this is None or this.number != number:
            raise ConfigurationError(
                f"Layer {name!r} is called several times in a batch, so it cannot be divided. "
                "Train the model with another trainer."
            )
        return this

    def _answer(
        self, device: int, future: Future[Answer], shape: tuple[int, ...], taken: dict[int, float]
    ) -> Array:
        """Return the array of an answer; record its seconds."""
        seconds, arrays = self._group.result(future)
        if [array.shape for array in arrays] != [shape]:
            raise RemoteProtocolError(f"{shape} is expected of device {device}. Received: {arrays}")
        taken[device] = taken.get(device, 0.0) + seconds
        array: Array = arrays[0]
        return array


def _median(paces: Sequence[UnitTime | None]) -> UnitTime | None:
    """Return the median pace of several passes; None if the device had no channel."""
    known = [pace for pace in paces if pace is not None]
    if not known:
        return None
    return UnitTime(
        forward=statistics.median(pace.forward for pace in known),
        backward=statistics.median(pace.backward for pace in known),
    )


def _slice(channels: range) -> slice:
    return slice(channels.start, channels.stop)

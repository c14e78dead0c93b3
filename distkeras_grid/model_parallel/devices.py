"""The master's side of divided convolutions: assigns the units, and joins the results.

Who computes what is measured and planned once, before the first batch.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.model_parallel.arithmetic import UnitRange
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.proportional_split import divide, ranges
from distkeras_grid.model_parallel.rpc import Answer, Array
from distkeras_grid.model_parallel.time_model import (
    Layers,
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
    """One pass through a layer: who has which units, and what is still to come.

    `forward` and `backward` are the seconds of the devices that have answered.
    """

    number: int
    units: tuple[range, ...]
    forward: dict[int, float] = field(default_factory=dict)
    backward: dict[int, float] = field(default_factory=dict)
    gradients: dict[int, Future[Answer]] = field(default_factory=dict)
    own: Array | None = None
    backward_began: bool = False

    @property
    def others(self) -> list[int]:
        """Devices with units, without the master."""
        return [device for device, units in enumerate(self.units) if device and units]

    def pace(self, device: int) -> UnitTime | None:
        """Return how long a device took for a unit; None if it has none."""
        units = len(self.units[device])
        if not units:
            return None
        # A clock that does not move would make a device infinitely fast.
        forward, backward = (max(each[device], 1e-9) for each in (self.forward, self.backward))
        return UnitTime(forward=forward / units, backward=backward / units)


class Devices:
    """The master and the devices of its group, as one device that computes convolutions.

    `layers`: layers that may be divided.
    """

    def __init__(
        self, layers: Sequence[Convolution], group: DeviceGroup, batch: int, which: Layers = "auto"
    ) -> None:
        self._layers = {layer.name: layer for layer in layers}
        self._group = group
        self._batch = batch
        self._which: Layers = which
        self._passes: dict[tuple[str, int], _Pass] = {}
        self._newest: dict[str, int] = {}
        self._numbers = itertools.count(1)
        # Paces while all work at once, and the master's while the others wait. On one machine they
        # differ: the first are for divided layers, the second is for whole ones.
        self._paces: dict[str, list[UnitTime | None]] = {}
        self._alone: dict[str, UnitTime | None] = {}
        self.link = NetworkLink(bandwidth=float("inf"))
        self._overheads: dict[str, float] = {}
        self._shares: dict[str, tuple[int, ...]] = {}
        self.plan = SplitPlan(layers=())
        self.disable_splitting()

    # Decisions

    def measure(self) -> SplitPlan:
        """Measure the link and the layers, on all devices at once and on the master; then plan.

        Devices on one machine slow each other down, so a layer that is divided is measured on all
        at the same time, and a whole one on the master while the others wait.
        """
        self.link = self._measured_link()
        random = np.random.default_rng(0)
        for name, layer in self._layers.items():
            self._shares[name] = divide(layer.units, [1.0] * self._group.count)
            shapes = (
                (self._batch, *layer.input_shape),
                layer.kernel_shape(layer.units),
                (self._batch, *layer.output_shape),
            )
            x, kernel, dy = (random.standard_normal(shape, np.float32) for shape in shapes)
            seconds, paces = self._timed_passes(name, x, kernel, dy)
            expected = divided_seconds(layer, self._batch, self._shares[name], paces, self.link)
            self._overheads[name] = max(0.0, seconds - expected)
            self._shares[name] = self._all_mine(layer)
            _, (self._alone[name], *_) = self._timed_passes(name, x, kernel, dy)
            self._paces[name] = [paces[0] or self._alone[name], *paces[1:]]
        self.apply_plan(self._planned())
        return self.plan

    def _timed_passes(
        self, name: str, x: Array, kernel: Array, dy: Array
    ) -> tuple[float, list[UnitTime | None]]:
        """Pass through a layer as it is shared now; return the time [s] and each device's pace."""
        taken, paces = [], []
        for _ in range(1 + OBSERVATIONS):
            clock = time.perf_counter()
            _, number = self.forward(name, x, kernel)
            this = self._passes[name, number]
            self.backward(name, number, x, kernel, dy)
            self.kernel_gradient(name, number)
            taken.append(time.perf_counter() - clock)
            paces.append([this.pace(device) for device in range(self._group.count)])
        medians = [_median(each) for each in zip(*paces[1:], strict=True)]
        return statistics.median(taken[1:]), medians

    def apply_plan(self, plan: SplitPlan) -> None:
        """Divide as a plan says, from the next pass of each layer on."""
        self.plan = plan
        self._shares |= {layer.layer: layer.shares for layer in plan.layers}

    def disable_splitting(self) -> None:
        """Compute everything on the master, until `divide_again`."""
        self._shares = {name: self._all_mine(layer) for name, layer in self._layers.items()}

    def divide_again(self, baseline_seconds: float, through: float) -> SplitPlan:
        """Divide as planned, unless a batch of the model as it is takes no longer.

        `baseline_seconds`: time of a batch of the model as it is [s].
        `through`: time of a batch with all layers computed here, on the master alone [s].
        """
        layers = math.fsum(layer.whole for layer in self.plan.layers)
        plan = self._planned(max(0.0, through - layers), baseline_seconds)
        if self._which == "auto" and not plan.pays:
            plan = plan.all_whole()
        self.apply_plan(plan)
        return plan

    def _planned(self, rest: float = 0.0, baseline_seconds: float | None = None) -> SplitPlan:
        """Return the plan that follows from what was measured; the times are as of `SplitPlan`."""
        return plan_layers(
            list(self._layers.values()),
            self._batch,
            self._paces,
            self.link,
            which=self._which,
            rest=rest,
            baseline_seconds=baseline_seconds,
            overheads=self._overheads,
            alone=self._alone,
        )

    def _all_mine(self, layer: Convolution) -> tuple[int, ...]:
        return (layer.units, *[0] * (self._group.count - 1))

    def _measured_link(self) -> NetworkLink:
        others = len(self._group.others)
        if not others:
            return self.link
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

        `x`: input of the layer, shape ``(rows, *spatial, channels)``.
        """
        layer = self._layers[name]
        this = _Pass(next(self._numbers), ranges(self._shares[name]))
        self._remember(name, this)
        asked = {
            device: self._group.call(
                device,
                "forward",
                *_operands(layer, this.units[device], x, kernel),
                layer=name,
                number=this.number,
            )[0]
            for device in this.others
        }
        own = None
        if this.units[0]:
            clock = time.perf_counter()
            own = UnitRange(layer, *_operands(layer, this.units[0], x, kernel)).output()
            this.forward[0] = time.perf_counter() - clock
        if own is not None and not asked:
            return own, this.number
        y = aligned_empty((len(x), *layer.output_shape))
        if own is not None:
            y[..., layer.output_part(this.units[0])] = own
        for device, future in asked.items():
            part = y[..., layer.output_part(this.units[device])]
            part[:] = self._answer(device, future, part.shape, this.forward)
        return y, this.number

    def backward(self, name: str, number: int, x: Array, kernel: Array, dy: Array) -> Array | None:
        """Return the gradient of a pass's input; None if it is not needed.

        `kernel_gradient` returns the kernel's gradient: it is received while the next layer's
        gradient is sent.
        """
        layer = self._layers[name]
        # If a layer is called several times in a batch, only its newest pass is kept.
        this = self._passes.get((name, number)) or _Pass(number, ranges(self._shares[name]))
        self._passes[name, number] = this
        this.backward_began = True
        first = {}
        for device in this.others:
            # A copy: TensorFlow may reuse the memory before the array is sent.
            arrays = [np.array(dy[..., layer.output_part(this.units[device])])]
            if self._newest[name] != number:
                # A device keeps only the newest pass of a layer.
                arrays += _operands(layer, this.units[device], x, kernel)
            first[device], this.gradients[device] = self._group.call(
                device, "backward", *arrays, answers=2, layer=name, number=number
            )
        dx = None
        if this.units[0]:
            clock = time.perf_counter()
            part = UnitRange(layer, *_operands(layer, this.units[0], x, kernel))
            own = dy[..., layer.output_part(this.units[0])]
            dx = part.input_gradient(own) if layer.input_gradient else None
            this.own = part.kernel_gradient(own)
            this.backward[0] = time.perf_counter() - clock
            if dx is not None and first:
                dx = _added(layer, None, dx, this.units[0], x.shape)
        for device, future in first.items():
            units = this.units[device]
            if not layer.input_gradient:
                continue
            shape = x[..., layer.input_part(units)].shape
            theirs = self._answer(device, future, shape, this.backward)
            dx = _added(layer, dx, theirs, units, x.shape)
        return dx

    def kernel_gradient(self, name: str, number: int) -> Array:
        """Return the gradient of the kernel, after `backward` for the same pass."""
        layer, this = self._layers[name], self._passes.pop((name, number))
        if this.own is not None and not this.others:
            return this.own
        gradient = aligned_empty(layer.kernel_shape(layer.units))
        if this.own is not None:
            gradient[layer.kernel_part(this.units[0])] = this.own
        for device, future in this.gradients.items():
            units = this.units[device]
            shape = layer.kernel_shape(len(units))
            part = self._answer(device, future, shape, this.backward)
            gradient[layer.kernel_part(units)] = part
        return gradient

    def _remember(self, name: str, this: _Pass) -> None:
        """Keep a pass for its gradients; the one before may have had none."""
        before = (name, self._newest.get(name, 0))
        if before in self._passes and not self._passes[before].backward_began:
            del self._passes[before]
        self._newest[name] = this.number
        self._passes[name, this.number] = this

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
    """Return the median pace of several passes; None if the device had no unit."""
    known = [pace for pace in paces if pace is not None]
    if not known:
        return None
    return UnitTime(
        forward=statistics.median(pace.forward for pace in known),
        backward=statistics.median(pace.backward for pace in known),
    )


def _operands(layer: Convolution, units: range, x: Array, kernel: Array) -> tuple[Array, Array]:
    return x[..., layer.input_part(units)], kernel[layer.kernel_part(units)]


def _added(
    layer: Convolution, total: Array | None, part: Array, units: range, shape: tuple[int, ...]
) -> Array:
    """Add a part of the input's gradient: to all channels, or with groups to the group's own."""
    if layer.groups > 1:
        if total is None:
            total = aligned_empty(shape)
        total[..., layer.input_part(units)] = part
        return total
    if total is None:
        total = aligned_empty(shape)
        np.copyto(total, part)
        return total
    np.add(total, part, out=total)
    return total

"""The master's side of divided convolutions: assigns the units, and joins the results.

Who computes what is measured and planned once, before the first batch. If a device is lost, only
its open requests are lost: kernels, optimizer and data are with the master, which computes the
missing parts itself until the device is there again.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec
import numpy as np

from distkeras_grid.model_parallel.arithmetic import Array, UnitRange
from distkeras_grid.model_parallel.device_connection import Answer, DeviceConnection
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.messages import (
    Backward,
    Echo,
    Forward,
    ForwardResult,
    InputGradient,
    KernelGradient,
)
from distkeras_grid.model_parallel.proportional_split import divide, ranges
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
#: Seconds that a device may take for an answer, in addition to `PATIENCE` times what is expected.
PATIENCE_SECONDS = 10.0
PATIENCE = 20.0


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
    # The connections to the devices that have kept the input and their kernel.
    holders: dict[int, DeviceConnection] = field(default_factory=dict)
    own: Array | None = None
    arrays: tuple[Array, Array, Array] | None = None

    @property
    def others(self) -> list[int]:
        """Devices with units, without the master."""
        return [device for device, units in enumerate(self.units) if device and units]

    def pace(self, device: int) -> UnitTime | None:
        """Return how long a device took for a unit; None if it has not answered."""
        if device not in self.forward or device not in self.backward:
            return None
        units = len(self.units[device])
        # A clock that does not move would make a device infinitely fast.
        forward, backward = (max(each[device], 1e-9) for each in (self.forward, self.backward))
        return UnitTime(forward=forward / units, backward=backward / units)


class Devices(DeviceGroup):
    """The master and the other devices, as one device that computes convolutions.

    `layers`: layers that may be divided.
    `start_seconds`: how long a measurement may take [s].
    """

    stateless = True

    def __init__(
        self,
        layers: Sequence[Convolution],
        count: int,
        batch: int,
        which: Layers = "auto",
        tell: Callable[[str], None] = lambda _: None,
        *,
        start_seconds: float = 300.0,
    ) -> None:
        super().__init__(count, tell)
        self._layers = {layer.name: layer for layer in layers}
        self._batch = batch
        self._which: Layers = which
        self._patience = start_seconds
        self._passes: dict[tuple[str, int], _Pass] = {}
        self._newest: dict[str, int] = {}
        self._numbers = itertools.count(1)
        # Paces while all work at once, and the master's while the others wait. On one machine they
        # differ: the first are for divided layers, the second is for whole ones.
        self._paces: dict[str, list[UnitTime | None]] = {}
        self._alone: dict[str, UnitTime | None] = {}
        self._link = NetworkLink(bandwidth=float("inf"))
        self._overheads: dict[str, float] = {}
        self._shares = {name: self._all_mine(layer) for name, layer in self._layers.items()}
        self.plan = SplitPlan(layers=())

    # Decisions

    def measure(self) -> SplitPlan:
        """Measure the line and the layers, on all devices at once and on the master; then plan.

        Devices on one machine slow each other down, so a layer that is divided is measured on all
        at the same time, and a whole one on the master while the others wait.
        """
        self._link = self._measured_link()
        random = np.random.default_rng(0)
        for name, layer in self._layers.items():
            with self._changed:
                present = [1.0, *(float(d in self._lines) for d in range(1, self._expected))]
                self._shares[name] = divide(layer.units, present)
            shapes = (
                (self._batch, *layer.input_shape),
                layer.kernel_shape(layer.units),
                (self._batch, *layer.output_shape),
            )
            x, kernel, dy = (random.standard_normal(shape, np.float32) for shape in shapes)
            seconds, paces = self._timed_passes(name, x, kernel, dy)
            self._note_overhead(layer, seconds, paces)
            self._shares[name] = self._all_mine(layer)
            _, (self._alone[name], *_) = self._timed_passes(name, x, kernel, dy)
            self._paces[name] = [paces[0] or self._alone[name], *paces[1:]]
        self.apply_plan(self._planned())
        slowest = max((layer.divided for layer in self.plan.layers), default=0.0)
        self._patience = PATIENCE_SECONDS + PATIENCE * slowest
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
            paces.append([this.pace(device) for device in range(self._expected)])
        medians = [_median(each) for each in zip(*paces[1:], strict=True)]
        return statistics.median(taken[1:]), medians

    def _note_overhead(
        self, layer: Convolution, seconds: float, paces: Sequence[UnitTime | None]
    ) -> None:
        """Note how much longer a measured pass took than computing and sending alone."""
        shares = self._shares[layer.name]
        if any(units and pace is None for units, pace in zip(shares, paces, strict=True)):
            return
        expected = divided_seconds(layer, self._batch, shares, paces, self._link)
        self._overheads[layer.name] = max(0.0, seconds - expected)

    def apply_plan(self, plan: SplitPlan) -> None:
        """Divide as a plan says, from the next pass of each layer on."""
        with self._changed:
            self.plan = plan
            self._shares |= {layer.layer: layer.shares for layer in plan.layers}

    @property
    def link(self) -> NetworkLink:
        """The measured connection to the devices."""
        return self._link

    def disable_splitting(self) -> None:
        """Compute everything on the master, until `divide_again`."""
        with self._changed:
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
            self._link,
            which=self._which,
            rest=rest,
            baseline_seconds=baseline_seconds,
            overheads=self._overheads,
            alone=self._alone,
        )

    def _all_mine(self, layer: Convolution) -> tuple[int, ...]:
        return (layer.units, *[0] * (self._expected - 1))

    def _measured_link(self) -> NetworkLink:
        with self._changed:
            lines = list(self._lines.values())
        if not lines:
            return self._link
        small, large = np.zeros(1, np.float32), np.zeros(ECHO_BYTES // 4, np.float32)
        latency = statistics.median(self._echo(lines, small) for _ in range(OBSERVATIONS)) / 2
        self._echo(lines, large)
        seconds = statistics.median(self._echo(lines, large) for _ in range(OBSERVATIONS))
        moved = 2 * ECHO_BYTES * len(lines)
        return NetworkLink(bandwidth=moved / max(seconds - 2 * latency, 1e-9), latency=latency)

    def _echo(self, lines: Sequence[DeviceConnection], array: Array) -> float:
        clock = time.perf_counter()
        asked = [(line, line.ask(Echo(), [array])[0]) for line in lines]
        for line, future in asked:
            self._answer(line.number, future, Echo, array.shape)
        return time.perf_counter() - clock

    # Passes through a layer

    def forward(self, name: str, x: Array, kernel: Array) -> tuple[Array, int]:
        """Return the output of a layer, without bias, and the number of the pass.

        `x`: input of the layer, shape ``(rows, *spatial, channels)``.
        """
        layer = self._layers[name]
        with self._changed:
            this = _Pass(next(self._numbers), ranges(self._shares[name]))
            lines = {device: self._lines.get(device) for device in this.others}
            self._remember(name, this)
        this.holders = {device: line for device, line in lines.items() if line is not None}
        request = Forward(layer=name, call=this.number)
        asked = {
            device: line.ask(request, _operands(layer, this.units[device], x, kernel))[0]
            for device, line in this.holders.items()
        }
        own = self._own_output(layer, this, x, kernel)
        if own is not None and not this.others:
            return own, this.number
        y = aligned_empty((len(x), *layer.output_shape))
        if own is not None:
            y[..., layer.output_part(this.units[0])] = own
        for device in this.others:
            units = this.units[device]
            shape = (len(x), *layer.output_shape[:-1], len(units) * layer.unit_channels)
            part = None
            if device in asked:
                part = self._answer(device, asked[device], ForwardResult, shape, this.forward)
            if part is None:
                part = UnitRange(layer, *_operands(layer, units, x, kernel)).output()
            y[..., layer.output_part(units)] = part
        return y, this.number

    def backward(self, name: str, number: int, x: Array, kernel: Array, dy: Array) -> Array | None:
        """Return the gradient of a pass's input; None if it is not needed.

        `kernel_gradient` returns the kernel's gradient: it is received while the next layer's
        gradient is sent.
        """
        layer = self._layers[name]
        with self._changed:
            # If a layer is called several times in a batch, only its newest pass is kept.
            this = self._passes.get((name, number)) or _Pass(number, ranges(self._shares[name]))
            this.arrays = x, kernel, dy
            self._passes[name, number] = this
        first = self._ask_gradients(layer, this)
        dx = self._own_gradients(layer, this)
        for device in this.others:
            if not layer.input_gradient:
                break
            units = this.units[device]
            part = None
            if device in first:
                shape = x[..., layer.input_part(units)].shape
                part = self._answer(device, first[device], InputGradient, shape, this.backward)
            if part is None:
                a, b, c = self._parts(layer, this, device)
                part = UnitRange(layer, a, b).input_gradient(c)
            dx = _added(layer, dx, part, units, x.shape)
        return dx

    def kernel_gradient(self, name: str, number: int) -> Array:
        """Return the gradient of the kernel, after `backward` for the same pass."""
        layer, this = self._layers[name], self._passes.pop((name, number))
        if this.own is not None and not this.others:
            return this.own
        gradient = aligned_empty(layer.kernel_shape(layer.units))
        if this.own is not None:
            gradient[layer.kernel_part(this.units[0])] = this.own
        for device in this.others:
            units = this.units[device]
            part = None
            if device in this.gradients:
                shape = layer.kernel_shape(len(units))
                future = this.gradients[device]
                part = self._answer(device, future, KernelGradient, shape, this.backward)
            if part is None:
                a, b, c = self._parts(layer, this, device)
                part = UnitRange(layer, a, b).kernel_gradient(c)
            gradient[layer.kernel_part(units)] = part
        return gradient

    def _own_output(self, layer: Convolution, this: _Pass, x: Array, kernel: Array) -> Array | None:
        if not this.units[0]:
            return None
        clock = time.perf_counter()
        y = UnitRange(layer, *_operands(layer, this.units[0], x, kernel)).output()
        this.forward[0] = time.perf_counter() - clock
        return y

    def _own_gradients(self, layer: Convolution, this: _Pass) -> Array | None:
        """Compute the master's gradients; return its part of the input's."""
        if not this.units[0]:
            return None
        clock = time.perf_counter()
        x, kernel, dy = self._parts(layer, this, 0)
        part = UnitRange(layer, x, kernel)
        dx = part.input_gradient(dy) if layer.input_gradient else None
        this.own = part.kernel_gradient(dy)
        this.backward[0] = time.perf_counter() - clock
        if dx is None or this.arrays is None or not this.others:
            return dx
        return _added(layer, None, dx, this.units[0], this.arrays[0].shape)

    def _remember(self, name: str, this: _Pass) -> None:
        """Keep a pass for its gradients; the one before may have had none."""
        before = (name, self._newest.get(name, 0))
        if before in self._passes and self._passes[before].arrays is None:
            del self._passes[before]
        self._newest[name] = this.number
        self._passes[name, this.number] = this

    def _ask_gradients(self, layer: Convolution, this: _Pass) -> dict[int, Future[Answer]]:
        """Ask all other devices for their gradients; return those of the input."""
        with self._changed:
            lines = {device: self._lines.get(device) for device in this.others}
        first = {}
        for device, line in lines.items():
            if line is None:
                continue
            x, kernel, dy = self._parts(layer, this, device)
            # A copy: TensorFlow may reuse the memory before the array is sent.
            arrays = [np.array(dy), *(() if this.holders.get(device) is line else (x, kernel))]
            first[device], this.gradients[device] = line.ask(
                Backward(layer=layer.name, call=this.number), arrays, answers=2
            )
        return first

    def _parts(self, layer: Convolution, this: _Pass, device: int) -> tuple[Array, Array, Array]:
        """Return a device's parts of the input, kernel and gradient of a pass."""
        if this.arrays is None:
            raise RuntimeError(f"Pass {this.number} of {layer.name} has ended.")
        x, kernel, dy = this.arrays
        units = this.units[device]
        return (*_operands(layer, units, x, kernel), dy[..., layer.output_part(units)])

    def _answer(
        self,
        device: int,
        future: Future[Answer],
        kind: type[msgspec.Struct],
        shape: tuple[int, ...],
        seconds: dict[int, float] | None = None,
    ) -> Array | None:
        """Return the array of an answer, None if the device is lost; record its seconds."""
        try:
            message, arrays = future.result(self._patience)
        except OSError as error:
            self.drop(device, str(error) or f"no answer in {self._patience:.0f} s")
            return None
        if not isinstance(message, kind) or [array.shape for array in arrays] != [shape]:
            self.drop(device, f"{kind.__name__} of {shape} is expected. Received: {message!r}")
            return None
        if seconds is not None:
            seconds[device] = seconds.get(device, 0.0) + float(getattr(message, "seconds", 0.0))
        return arrays[0]


def _median(paces: Sequence[UnitTime | None]) -> UnitTime | None:
    """Return the median pace of several passes; None if the device has missed one."""
    known = [pace for pace in paces if pace is not None]
    if len(known) < len(paces):
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

"""The time of a batch with convolutions whole and divided, from measured paces and a link.

A layer has K units. Device d computes k_d of them, at c_d seconds per unit. Device 0 is the master;
it computes its own share while the others receive, compute and send::

    divided = max(k_0 c_0,  2 latency + bytes / bandwidth + max_{d>0} k_d c_d) + overhead
    whole   = K a_0

a_0 is the master's pace while the others wait. On one machine it is faster than c_0, because the
devices slow each other down; where it is not measured, c_0 takes its place. The overhead is the
rest of a measured pass: copies, and threads that wait for each other.

`bytes` are those of all other devices together, because they pass through the master's one link::

    forward   sum_d (X + W_d + Y_d)
    backward  sum_d (dY_d + dX_d + dW_d)

with ``X = 4 B H W C`` for every device (with groups its part of it), ``W_d = 4 n_w k_d`` and
``Y_d = 4 B H' W' k_d``. dX is left out if nothing before the layer is trained. The model counts dW
in full, although it is sent while the next layer works; so the real speedup may be higher.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.frozen_struct import FrozenStruct
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.proportional_split import divide

#: Which layers are divided: those for which it pays, all possible ones, or those with these names.
Layers: TypeAlias = Literal["auto", "all"] | tuple[str, ...]


class UnitTime(FrozenStruct, frozen=True):
    """How long a device takes for one unit of a layer."""

    forward: float  # forward and backward: Seconds per unit, above 0
    backward: float

    def __post_init__(self) -> None:
        if not (self.forward > 0 and self.backward > 0 and self.both < math.inf):
            raise ConfigurationError(f"A pace is above 0 and finite. Received: {self!r}.")

    @property
    def both(self) -> float:
        """Seconds per unit, forward and backward together."""
        return self.forward + self.backward


class NetworkLink(FrozenStruct, frozen=True):
    """The master's connection to the other devices."""

    # Bytes per second, both directions together; infinity for a link that costs nothing
    bandwidth: float
    latency: float = 0.0  # Time of one way [s]

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or not 0 <= self.latency < math.inf:
            raise ConfigurationError(
                f"A link has a bandwidth above 0 and a finite latency. Received: {self!r}."
            )

    def seconds(self, moved: int) -> float:
        """Return the time [s] of a request and its answer with this many bytes; 0 without bytes."""
        return 2 * self.latency + moved / self.bandwidth if moved else 0.0


class LayerPlan(FrozenStruct, frozen=True):
    """What is decided about a layer, and why."""

    layer: str  # Name of the layer
    shares: tuple[int, ...]  # Number of units of each device; the first is the master
    # whole and divided: Predicted time of a batch on the master alone, and with these shares [s]
    whole: float
    divided: float
    moved: int  # Bytes that a batch moves, in all directions

    @property
    def is_divided(self) -> bool:
        """Whether any other device has a share."""
        return any(self.shares[1:])


class SplitPlan(FrozenStruct, frozen=True):
    """What is decided about all convolutions of a model."""

    layers: tuple[LayerPlan, ...]  # One plan for each layer, in the order of the model
    rest: float = 0.0  # Seconds of a batch outside of these layers, once layers are divided
    # Measured seconds of a batch of the model as Keras computes it, in one graph. Without it, the
    # times of the layers and the rest are added.
    baseline_seconds: float | None = None

    @property
    def whole(self) -> float:
        """Time of a batch on the master alone [s]."""
        if self.baseline_seconds is not None:
            return self.baseline_seconds
        return self.rest + math.fsum(layer.whole for layer in self.layers)

    @property
    def divided(self) -> float:
        """Predicted time of a batch as planned [s]."""
        if not self.shares:
            return self.whole
        return self.rest + math.fsum(layer.divided for layer in self.layers)

    @property
    def pays(self) -> bool:
        """Whether the batch is faster as planned than on the master alone."""
        return self.divided < self.whole

    def all_whole(self) -> SplitPlan:
        """Return the plan that leaves all layers to the master."""
        layers = tuple(
            LayerPlan(
                layer=layer.layer,
                shares=(sum(layer.shares), *[0] * (len(layer.shares) - 1)),
                whole=layer.whole,
                divided=layer.whole,
                moved=0,
            )
            for layer in self.layers
        )
        return SplitPlan(layers=layers, rest=self.rest, baseline_seconds=self.baseline_seconds)

    @property
    def shares(self) -> dict[str, tuple[int, ...]]:
        """Shares of the layers that are divided."""
        return {layer.layer: layer.shares for layer in self.layers if layer.is_divided}

    def table(self) -> list[str]:
        r"""Return the plan as lines of text: a table, and whether dividing pays.

        Examples
        --------
        >>> layer = LayerPlan(layer="c2", shares=(6, 4), whole=0.5, divided=0.4, moved=2_000_000)
        >>> print("\n".join(SplitPlan(layers=(layer,), rest=0.1).table()))
        layer       units of each device    whole  divided  MB a batch
        c2          6 4                   0.500 s  0.400 s           2
        other work                        0.100 s  0.100 s
        Dividing pays: 0.500 s a batch instead of 0.600 s, 1.2 times as fast (predicted).
        """
        heads = "layer", "units of each device", "whole", "divided", "MB a batch"
        rows: list[tuple[str, ...]] = [
            (
                layer.layer,
                " ".join(map(str, layer.shares)),
                f"{layer.whole:.3f} s",
                f"{layer.divided:.3f} s",
                f"{layer.moved / 1e6:.3g}",
            )
            for layer in self.layers
        ]
        if self.rest or self.baseline_seconds is not None:
            # A layer by itself may take longer than in the graph of the model.
            whole = max(0.0, self.whole - math.fsum(layer.whole for layer in self.layers))
            divided = max(0.0, self.divided - math.fsum(layer.divided for layer in self.layers))
            rows.append(("other work", "", f"{whole:.3f} s", f"{divided:.3f} s", ""))
        return [*text_table(heads, rows), self.verdict()]

    def verdict(self) -> str:
        """Return a sentence: whether dividing pays."""
        if not self.shares and self.baseline_seconds is not None:
            return (
                f"Dividing does not pay: the model as it is takes {self.whole:.3f} s a batch "
                "(measured), and divided it takes no less (predicted). All layers stay whole."
            )
        if not self.shares:
            return (
                "Dividing does not pay: no layer is faster with the other devices (predicted). The "
                f"convolutions take {self.whole - self.rest:.3f} s a batch, and all stay whole."
            )
        if not self.pays:
            return (
                f"Dividing does not pay: {self.divided:.3f} s a batch instead of "
                f"{self.whole:.3f} s (predicted). It is done because the layers were named."
            )
        return (
            f"Dividing pays: {self.divided:.3f} s a batch instead of {self.whole:.3f} s, "
            f"{self.whole / self.divided:.2g} times as fast (predicted)."
        )


#: The pace of a device without a share.
_NONE = UnitTime(forward=1.0, backward=1.0)


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, its first two columns left-aligned and the others right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    aligned = (
        [
            text.ljust(width) if place < 2 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in (heads, *rows)
    )
    return ["  ".join(row).rstrip() for row in aligned]


def moved_bytes(layer: Convolution, batch: int, shares: Sequence[int]) -> tuple[int, int]:
    """Return the bytes that a batch of a layer moves, forward and backward."""
    others = [units for units in shares[1:] if units]
    inputs = sum(layer.input_bytes(batch, units) for units in others)
    both = sum(layer.output_bytes(batch, units) + layer.weight_bytes(units) for units in others)
    return inputs + both, both + (inputs if layer.input_gradient else 0)


def divided_seconds(
    layer: Convolution,
    batch: int,
    shares: Sequence[int],
    paces: Sequence[UnitTime | None],
    link: NetworkLink,
) -> float:
    """Return the predicted time of a layer, forward and backward; see the module's equation.

    `paces`: pace of each device for this layer; None for one without a share.
    """
    there, back = moved_bytes(layer, batch, shares)
    known = [pace or _NONE for pace in paces]
    forward = [units * pace.forward for units, pace in zip(shares, known, strict=True)]
    backward = [units * pace.backward for units, pace in zip(shares, known, strict=True)]
    return sum(
        max(computing[0], link.seconds(moved) + max(computing[1:], default=0.0))
        for moved, computing in ((there, forward), (back, backward))
    )


def plan_layer(
    layer: Convolution,
    batch: int,
    paces: Sequence[UnitTime | None],
    link: NetworkLink,
    *,
    always: bool = False,
    overhead: float = 0.0,
    alone: UnitTime | None = None,
) -> LayerPlan:
    """Divide a layer over the devices that make it fastest, in proportion to their speeds.

    `paces`: pace of each device, the master's first; None for another one that has had no unit.
    `overhead`: seconds of a batch that a divided layer takes longer, forward and backward.
    """
    speeds = [0.0 if pace is None else 1.0 / pace.both for pace in paces]
    whole = layer.units * alone.both if alone else layer.units / speeds[0]
    fastest_first = sorted((d for d in range(1, len(paces)) if speeds[d]), key=lambda d: -speeds[d])
    options = []
    for count in range(len(fastest_first) + 1):
        used = {0, *fastest_first[:count]}
        shares = divide(layer.units, [s if d in used else 0.0 for d, s in enumerate(speeds)])
        seconds = divided_seconds(layer, batch, shares, paces, link) + overhead
        options.append((seconds if any(shares[1:]) else whole, shares))
    seconds, shares = options[-1] if always else min(options, key=lambda option: option[0])
    return LayerPlan(
        layer=layer.name,
        shares=shares,
        whole=whole,
        divided=seconds,
        moved=sum(moved_bytes(layer, batch, shares)),
    )


def plan_layers(
    layers: Sequence[Convolution],
    batch: int,
    paces: Mapping[str, Sequence[UnitTime | None]],
    link: NetworkLink,
    *,
    which: Layers = "auto",
    rest: float = 0.0,
    baseline_seconds: float | None = None,
    overheads: Mapping[str, float] | None = None,
    alone: Mapping[str, UnitTime | None] | None = None,
) -> SplitPlan:
    """Decide which layers are divided, and how.

    `rest`: seconds of a batch outside of these layers.
    """
    extra, masters = overheads or {}, alone or {}
    plans = []
    for layer in layers:
        named = which == "all" or (which != "auto" and layer.name in which)
        present = paces[layer.name] if named or which == "auto" else [*paces[layer.name]][:1]
        overhead = extra.get(layer.name, 0.0)
        plan = plan_layer(
            layer,
            batch,
            present,
            link,
            always=named,
            overhead=overhead,
            alone=masters.get(layer.name),
        )
        missing = len(paces[layer.name]) - len(plan.shares)
        plans.append(
            LayerPlan(
                layer=plan.layer,
                shares=(*plan.shares, *[0] * missing),
                whole=plan.whole,
                divided=plan.divided,
                moved=plan.moved,
            )
        )
    return SplitPlan(layers=tuple(plans), rest=rest, baseline_seconds=baseline_seconds)

"""The time of a batch with convolutions whole and divided, from measured paces and a link.

A layer has K output channels. Device d computes k_d of them, at c_d seconds per channel. Device 0
is the master; it computes its own share while the others receive, compute and send::

    divided = max(k_0 c_0,  2 latency + bytes / bandwidth + max_{d>0} k_d c_d) + overhead
    whole   = K a_0

a_0 is the master's pace while the others wait. On one machine it is faster than c_0, because the
devices slow each other down; where it is not measured, c_0 takes its place. The overhead is the
rest of a measured pass: copies, and threads that wait for each other.

`bytes` are those of all other devices together, because they pass through the master's one link::

    forward   sum_d (X + W_d + Y_d)
    backward  sum_d (dY_d + dX_d + dW_d)

with ``X = 4 B H W C`` for every device, ``W_d = 4 n_w k_d`` and ``Y_d = 4 B H' W' k_d``. dX is left
out if nothing before the layer is trained. The model counts dW in full, although it is sent while
the next layer works; so the real speedup may be higher. A whole batch is not predicted: it is timed
whole and divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from distkeras_grid.frozen_struct import FrozenStruct
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.proportional_split import divide

#: Which layers are divided: those for which it pays, or all possible ones.
Layers: TypeAlias = Literal["auto", "all"]


class UnitTime(FrozenStruct, frozen=True):
    """How long a device takes for one channel of a layer."""

    forward: float  # forward and backward: Seconds per channel, above 0
    backward: float

    @property
    def both(self) -> float:
        """Seconds per channel, forward and backward together."""
        return self.forward + self.backward


class LayerTimes(FrozenStruct, frozen=True):
    """What is measured of a layer."""

    paces: tuple[UnitTime | None, ...]  # Of each device, the master first; None without channels
    alone: UnitTime | None = None  # The master's, while the others wait
    overhead: float = 0.0  # Seconds of a batch that a divided layer takes longer, both ways


class NetworkLink(FrozenStruct, frozen=True):
    """The master's connection to the other devices."""

    # Bytes per second, both directions together; infinity for a link that costs nothing
    bandwidth: float
    latency: float = 0.0  # Time of one way [s]

    def seconds(self, moved: int) -> float:
        """Return the time [s] of a request and its answer with this many bytes; 0 without bytes."""
        return 2 * self.latency + moved / self.bandwidth if moved else 0.0


class LayerPlan(FrozenStruct, frozen=True):
    """What is decided about a layer, and why."""

    layer: str  # Name of the layer
    shares: tuple[int, ...]  # Number of channels of each device; the first is the master
    # whole and divided: Predicted time of a batch on the master alone, and with these shares [s]
    whole: float
    divided: float
    moved: int  # Bytes that a batch moves, in all directions

    @property
    def is_divided(self) -> bool:
        """Whether any other device has a share."""
        return any(self.shares[1:])

    def on_the_master(self) -> LayerPlan:
        """Return the plan that leaves the layer to the master."""
        shares = (sum(self.shares), *[0] * (len(self.shares) - 1))
        return LayerPlan(
            layer=self.layer, shares=shares, whole=self.whole, divided=self.whole, moved=0
        )


class SplitPlan(FrozenStruct, frozen=True):
    """What is decided about all convolutions of a model."""

    layers: tuple[LayerPlan, ...]  # One plan for each layer, in the order of the model
    # Measured time of a batch of the model as Keras computes it, and divided as planned [s]
    batch: tuple[float, float] | None = None

    @property
    def whole(self) -> float:
        """Predicted time of the convolutions of a batch on the master alone [s]."""
        return math.fsum(layer.whole for layer in self.layers)

    @property
    def shares(self) -> dict[str, tuple[int, ...]]:
        """Shares of the layers that are divided."""
        return {layer.layer: layer.shares for layer in self.layers if layer.is_divided}

    def decided(self, which: Layers, whole: float, divided: float) -> SplitPlan:
        """Return the plan after a batch has been timed: whole layers if that is no slower.

        With "all", they are divided in any case.
        """
        stays = which == "auto" and divided >= whole
        layers = (layer.on_the_master() if stays else layer for layer in self.layers)
        return SplitPlan(layers=tuple(layers), batch=(whole, divided))

    def table(self) -> list[str]:
        r"""Return the plan as lines of text: a table, and whether dividing pays.

        Examples
        --------
        >>> layer = LayerPlan(layer="c2", shares=(6, 4), whole=0.5, divided=0.4, moved=2_000_000)
        >>> print("\n".join(SplitPlan(layers=(layer,), batch=(0.6, 0.5)).table()))
        layer  channels of each device    whole  divided  MB a batch
        c2     6 4                      0.500 s  0.400 s           2
        Dividing pays: 0.500 s a batch instead of 0.600 s, 1.2 times as fast (measured).
        """
        heads = "layer", "channels of each device", "whole", "divided", "MB a batch"
        rows = [
            (
                layer.layer,
                " ".join(map(str, layer.shares)),
                f"{layer.whole:.3f} s",
                f"{layer.divided:.3f} s",
                f"{layer.moved / 1e6:.3g}",
            )
            for layer in self.layers
        ]
        return [*text_table(heads, rows), self.verdict()]

    def verdict(self) -> str:
        """Return a sentence: whether dividing pays."""
        if self.batch is None:
            return (
                "Dividing does not pay: no layer is faster with the other devices (predicted). The "
                f"convolutions take {self.whole:.3f} s a batch, and all stay whole."
            )
        whole, divided = self.batch
        times = f"{divided:.3f} s a batch instead of {whole:.3f} s"
        if divided < whole:
            return f"Dividing pays: {times}, {whole / divided:.2g} times as fast (measured)."
        reason = 'It is done because of layers="all".' if self.shares else "All stay whole."
        return f"Dividing does not pay: {times} (measured). {reason}"


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
    others = [channels for channels in shares[1:] if channels]
    inputs = len(others) * layer.input_bytes(batch)
    both = sum(layer.output_bytes(batch, each) + layer.weight_bytes(each) for each in others)
    return inputs + both, both + (inputs if layer.input_gradient else 0)


def divided_seconds(
    layer: Convolution,
    batch: int,
    shares: Sequence[int],
    paces: Sequence[UnitTime | None],
    link: NetworkLink,
) -> float:
    """Return the predicted time of a layer, forward and backward; see the module's equation.

    `paces`: as of `LayerTimes`.
    """
    there, back = moved_bytes(layer, batch, shares)
    known = [pace or _NONE for pace in paces]
    forward = [share * pace.forward for share, pace in zip(shares, known, strict=True)]
    backward = [share * pace.backward for share, pace in zip(shares, known, strict=True)]
    return sum(
        max(computing[0], link.seconds(moved) + max(computing[1:], default=0.0))
        for moved, computing in ((there, forward), (back, backward))
    )


def plan_layer(
    layer: Convolution,
    batch: int,
    times: LayerTimes,
    link: NetworkLink,
    *,
    always: bool = False,
) -> LayerPlan:
    """Divide a layer over the devices that make it fastest, in proportion to their speeds."""
    paces = times.paces
    speeds = [0.0 if pace is None else 1.0 / pace.both for pace in paces]
    whole = layer.channels * times.alone.both if times.alone else layer.channels / speeds[0]
    fastest_first = sorted((d for d in range(1, len(paces)) if speeds[d]), key=lambda d: -speeds[d])
    options = []
    for count in range(len(fastest_first) + 1):
        used = {0, *fastest_first[:count]}
        shares = divide(layer.channels, [s if d in used else 0.0 for d, s in enumerate(speeds)])
        seconds = divided_seconds(layer, batch, shares, paces, link) + times.overhead
        options.append((seconds if any(shares[1:]) else whole, shares))
    seconds, shares = options[-1] if always else min(options, key=lambda option: option[0])
    moved = sum(moved_bytes(layer, batch, shares))
    return LayerPlan(layer=layer.name, shares=shares, whole=whole, divided=seconds, moved=moved)


def plan_layers(
    layers: Sequence[Convolution],
    batch: int,
    times: Mapping[str, LayerTimes],
    link: NetworkLink,
    which: Layers = "auto",
) -> SplitPlan:
    """Decide which layers are divided, and how."""
    always = which == "all"
    return SplitPlan(
        layers=tuple(
            plan_layer(layer, batch, times[layer.name], link, always=always) for layer in layers
        )
    )

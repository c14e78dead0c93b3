"""Where a model is cut into stages: contiguous blocks of layers that take about as long.

The model is a row of pieces, which cannot be cut themselves. The seconds of a stage are the sum of
those of its pieces. The slowest stage sets the pace of the pipeline, so the time is divided evenly:
of S stages, cut r is where the time of the pieces before it is nearest to r / S of the whole, which
leaves no stage slower than an even part by more than the slowest piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.frozen_struct import FrozenStruct
from distkeras_grid.model_parallel.schedule import predicted_bubble
from distkeras_grid.model_parallel.time_model import text_table


class LayerGroup(FrozenStruct, frozen=True):
    """A part of a model that cannot be cut, or a stage of several, and what it costs."""

    name: str  # Name of its last layer, after which the model can be cut
    forward: float  # forward and backward: Time of a micro-batch [s]
    backward: float
    sent: int  # Bytes of a micro-batch's output
    trains: bool = True  # Whether it has weights that are trained

    @property
    def seconds(self) -> float:
        """Time of a micro-batch, forward and backward [s]."""
        return self.forward + self.backward


class Placement(FrozenStruct, frozen=True):
    """The stages of a model, in its order."""

    stages: tuple[LayerGroup, ...]
    micro_batches: int  # Micro-batches of a batch

    @property
    def cuts(self) -> tuple[str, ...]:
        """Names of the layers after which the model is cut."""
        return tuple(stage.name for stage in self.stages[:-1])

    @property
    def bubble(self) -> float:
        """Predicted share of the time in which stages wait, without the time on the line."""
        times = [stage.forward for stage in self.stages], [stage.backward for stage in self.stages]
        return predicted_bubble(*times, self.micro_batches)

    def table(self) -> list[str]:
        r"""Return the placement as lines of text.

        Examples
        --------
        >>> costs = {"forward": 0.01, "backward": 0.02, "sent": 8000}
        >>> pieces = [LayerGroup(name=name, **costs) for name in ("a", "b")]
        >>> print("\n".join(choose_cuts(pieces, 2, 3).table()))
        stage  up to layer  a micro-batch  MB sent on
        0      a                  0.030 s       0.008
        1      b                  0.030 s
        Stages wait 25 % of the time (predicted): 2 stages, 3 micro-batches.
        """
        rows = [
            (
                str(number),
                stage.name,
                f"{stage.seconds:.3f} s",
                f"{stage.sent / 1e6:.3g}" if number + 1 < len(self.stages) else "",
            )
            for number, stage in enumerate(self.stages)
        ]
        return [
            *text_table(("stage", "up to layer", "a micro-batch", "MB sent on"), rows),
            f"Stages wait {self.bubble:.0%} of the time (predicted): {len(self.stages)} stages, "
            f"{self.micro_batches} micro-batches.".replace("%", " %"),
        ]


def choose_cuts(pieces: Sequence[LayerGroup], stages: int, micro_batches: int) -> Placement:
    """Cut a model into stages that take about as long as each other.

    `pieces`: in the order of the model.
    `stages, micro_batches`: at least 1.
    """
    trained = [0, *accumulate(int(piece.trains) for piece in pieces)]
    if trained[-1] < stages:
        names = ", ".join(piece.name for piece in pieces[:-1]) or "nowhere"
        raise ConfigurationError(
            f"The model has {trained[-1]} parts with weights of their own that can be apart, for "
            f"{stages} workers. It can be cut after: {names}. Use fewer workers."
        )
    seconds = [0.0, *accumulate(piece.seconds for piece in pieces)]
    bounds = [0]
    for number in range(1, stages):
        # Each stage has weights that are trained, also those after it.
        low, high = trained[bounds[-1]], trained[-1] - (stages - number)
        stops = (n for n in range(bounds[-1] + 1, len(pieces)) if low < trained[n] <= high)
        wanted = number * seconds[-1] / stages
        bounds.append(min(stops, key=lambda stop: abs(seconds[stop] - wanted)))
    parts = (pieces[start:stop] for start, stop in pairwise([*bounds, len(pieces)]))
    return Placement(stages=tuple(map(_joined, parts)), micro_batches=micro_batches)


def _joined(pieces: Sequence[LayerGroup]) -> LayerGroup:
    return LayerGroup(
        name=pieces[-1].name,
        forward=math.fsum(piece.forward for piece in pieces),
        backward=math.fsum(piece.backward for piece in pieces),
        sent=pieces[-1].sent,
        trains=any(piece.trains for piece in pieces),
    )

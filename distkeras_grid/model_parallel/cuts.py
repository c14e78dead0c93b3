"""Where a model is cut into stages: contiguous blocks of layers, by measured time and memory.

The model is a row of pieces, which cannot be cut themselves. Stage r of S gets the pieces i to
j - 1. With M micro-batches, a stage takes per micro-batch, and holds at most,

    time    sum of the pieces' seconds, forward and backward
    memory  sum state + min(S - r, M) (sum activations + input) + copies
    copies  sum weights; for the last stage, VECTORS times the weights of all stages

The state are weights, their gradients and the optimizer's state; activations are what one
micro-batch leaves in memory from its forward to its backward pass. At the end of a window each
stage copies its weights. The last stage's worker holds vectors of all weights, which it exchanges
with the server. The slowest stage sets the pace of the pipeline. So the time is divided evenly: cut
r is where the time of the pieces before it is nearest to r / S of the whole, which leaves no stage
slower than an even part by more than the slowest piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.frozen_struct import FrozenStruct
from distkeras_grid.model_parallel.schedule import in_flight, predicted_bubble
from distkeras_grid.model_parallel.time_model import text_table
from distkeras_grid.spark.memory import VECTORS


class LayerGroup(FrozenStruct, frozen=True):
    """A part of a model that cannot be cut, and what it costs."""

    name: str  # Name of its last layer, after which the model can be cut
    forward: float  # forward and backward: Time of a micro-batch [s]
    backward: float
    state_bytes: int  # Bytes of weights, gradients and optimizer state
    # Bytes of a micro-batch from its forward to its backward pass, without the input
    activation_bytes: int
    sent: int  # Bytes of a micro-batch's output
    trains: bool = True  # Whether it has weights that are trained
    weights: int = 0  # Bytes of one copy of its weights, also of those that are not trained


class Stage(FrozenStruct, frozen=True):
    """A stage of a placement."""

    start: int  # start and stop: Its pieces, from `start` up to `stop` without it
    stop: int
    last: str  # Name of its last layer
    forward: float  # forward and backward: Time of a micro-batch [s]
    backward: float
    memory: int  # Bytes that it holds at most; see the module's equation
    sent: int  # Bytes of a micro-batch's output

    @property
    def seconds(self) -> float:
        """Time of a micro-batch, forward and backward [s]."""
        return self.forward + self.backward


class Placement(FrozenStruct, frozen=True):
    """Which pieces are on which stage."""

    stages: tuple[Stage, ...]  # In the order of the model
    micro_batches: int  # Micro-batches of a batch

    @property
    def cuts(self) -> tuple[str, ...]:
        """Names of the layers after which the model is cut."""
        return tuple(stage.last for stage in self.stages[:-1])

    @property
    def bubble(self) -> float:
        """Predicted share of the time in which stages wait, without the time on the line."""
        times = [stage.forward for stage in self.stages], [stage.backward for stage in self.stages]
        return predicted_bubble(*times, self.micro_batches)

    def table(self) -> list[str]:
        r"""Return the placement as lines of text.

        Examples
        --------
        >>> costs = {"state_bytes": 3_000_000, "weights": 1_000_000, "sent": 8000}
        >>> costs |= {"forward": 0.01, "backward": 0.02, "activation_bytes": 2_000_000}
        >>> pieces = [LayerGroup(name=name, **costs) for name in ("a", "b")]
        >>> print("\n".join(choose_cuts(pieces, 2, 3).table()))
        stage  up to layer  a micro-batch  MB at most  MB sent on
        0      a                  0.030 s           8       0.008
        1      b                  0.030 s          17
        Stages wait 25 % of the time (predicted): 2 stages, 3 micro-batches.
        """
        heads = "stage", "up to layer", "a micro-batch", "MB at most", "MB sent on"
        rows = [
            (
                str(number),
                stage.last,
                f"{stage.seconds:.3f} s",
                f"{stage.memory / 1e6:.3g}",
                f"{stage.sent / 1e6:.3g}" if number + 1 < len(self.stages) else "",
            )
            for number, stage in enumerate(self.stages)
        ]
        return [
            *text_table(heads, rows),
            f"Stages wait {self.bubble:.0%} of the time (predicted): {len(self.stages)} stages, "
            f"{self.micro_batches} micro-batches.".replace("%", " %"),
        ]


def choose_cuts(
    pieces: Sequence[LayerGroup],
    stages: int,
    micro_batches: int,
    *,
    input_bytes: int = 0,
    limit: float | None = None,
) -> Placement:
    """Cut a model into stages that take about as long as each other.

    `pieces`: in the order of the model.
    `stages, micro_batches`: at least 1.
    `input_bytes`: bytes of a micro-batch's input of the model.
    `limit`: most bytes of a stage; see the module's equation.
    """
    trained = [0, *accumulate(int(piece.trains) for piece in pieces)]
    if trained[-1] < stages:
        names = ", ".join(piece.name for piece in pieces[:-1]) or "nowhere"
        raise ConfigurationError(
            f"The model has {trained[-1]} parts with weights of their own that can be apart, for "
            f"{stages} workers. It can be cut after: {names}. Use fewer workers."
        )
    seconds = [0.0, *accumulate(piece.forward + piece.backward for piece in pieces)]
    bounds = [0]
    for number in range(1, stages):
        # Each stage has weights that are trained, also those after it.
        low, high = trained[bounds[-1]], trained[-1] - (stages - number)
        stops = (n for n in range(bounds[-1] + 1, len(pieces)) if low < trained[n] <= high)
        wanted = number * seconds[-1] / stages
        bounds.append(min(stops, key=lambda stop: abs(seconds[stop] - wanted)))
    return _placement(pieces, (*bounds, len(pieces)), micro_batches, input_bytes, limit)


def place_cuts(
    pieces: Sequence[LayerGroup],
    names: Sequence[str],
    micro_batches: int,
    *,
    input_bytes: int = 0,
    limit: float | None = None,
) -> Placement:
    """Cut a model after the layers of these names; other parameters as in `choose_cuts`."""
    known = {piece.name: number for number, piece in enumerate(pieces[:-1], start=1)}
    places = [known.get(name) for name in names]
    ordered = [place for place in places if place is not None]
    if len(ordered) < len(places) or ordered != sorted({*ordered}):
        raise ConfigurationError(
            "Cuts are names of layers after which a single tensor leads on, in the order of the "
            f"model. It can be cut after: {', '.join(known) or 'none'}. Received: {list(names)}."
        )
    bounds = (0, *ordered, len(pieces))
    for start, stop in pairwise(bounds):
        if not any(piece.trains for piece in pieces[start:stop]):
            raise ConfigurationError(
                f"Each stage has weights that are trained, and the one up to "
                f"{pieces[stop - 1].name!r} has none. Received: cuts={list(names)}."
            )
    return _placement(pieces, bounds, micro_batches, input_bytes, limit)


def _placement(
    pieces: Sequence[LayerGroup],
    bounds: Sequence[int],
    micro_batches: int,
    input_bytes: int,
    limit: float | None,
) -> Placement:
    """Return the placement with these bounds of the stages; refuse a stage above the limit."""
    inputs = [input_bytes, *(piece.sent for piece in pieces)]
    vectors = VECTORS * sum(piece.weights for piece in pieces)
    stages, count = [], len(bounds) - 1
    for number, (start, stop) in enumerate(pairwise(bounds)):
        own = pieces[start:stop]
        activation_bytes = sum(piece.activation_bytes for piece in own) + inputs[start]
        copies = vectors if number + 1 == count else sum(piece.weights for piece in own)
        stages.append(
            Stage(
                start=start,
                stop=stop,
                last=own[-1].name,
                forward=math.fsum(piece.forward for piece in own),
                backward=math.fsum(piece.backward for piece in own),
                memory=sum(piece.state_bytes for piece in own)
                + in_flight(count, number, micro_batches) * activation_bytes
                + copies,
                sent=own[-1].sent,
            )
        )
    placement = Placement(stages=tuple(stages), micro_batches=micro_batches)
    largest = max(stages, key=lambda stage: stage.memory)
    if limit is not None and largest.memory > limit:
        raise ConfigurationError(
            f"A stage may hold {limit / 1e6:.3g} MB (memory_limit), and the one up to "
            f"{largest.last!r} needs {largest.memory / 1e6:.3g} MB. The last stage's worker has "
            f"{vectors / 1e6:.3g} MB for {VECTORS} vectors of all weights, for any number of "
            f"workers. Received: cuts={list(placement.cuts)}. Name other cuts, use more workers, "
            "more micro-batches or a smaller batch, or give each worker more memory."
        )
    return placement

"""Where a model is cut into stages: contiguous blocks of layers, by measured time and memory.

The model is a row of pieces, which cannot be cut themselves. Stage r of S gets the pieces i to
j - 1. With M micro-batches, a stage takes per micro-batch, and holds at most,

    time    sum of the pieces' seconds, forward and backward
    memory  sum held + min(S - r, M) (sum kept + input) + copies
    copies  sum weights; for the last stage, VECTORS times the weights of all stages

`held` are weights, their gradients and the optimizer's state; `kept` is what one micro-batch leaves
in memory from its forward to its backward pass. At the end of a window each stage copies its
weights. The last stage's worker holds vectors of all weights, which it exchanges with the server.
The slowest stage sets the pace of the pipeline, so its time is minimised first, under the bound of
the memory. Measured times are never exact: among all ways to cut that are at most `SLACK` slower,
the one with the smallest largest memory is taken. Both are minimised exactly, by dynamic
programming over the pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.schedule import (
    bubble_share,
    in_flight,
    one_forward_one_backward,
    timetable,
)
from distkeras_grid.spark.memory import VECTORS
from distkeras_grid.spec import Value

#: How much slower than the fastest way to cut a way may be that needs less memory.
SLACK = 1.05


class Piece(Value, frozen=True):
    """A part of a model that cannot be cut, and what it costs.

    Parameters
    ----------
    name : str
        Name of its last layer, after which the model can be cut.
    forward, backward : float
        Time of a micro-batch [s].
    held : int
        Bytes of weights, gradients and optimizer state.
    kept : int
        Bytes of a micro-batch from its forward to its backward pass, without the input.
    sent : int
        Bytes of a micro-batch's output.
    trains : bool, default True
        Whether it has weights that are trained.
    weights : int, default 0
        Bytes of one copy of its weights, also of those that are not trained.
    """

    name: str
    forward: float
    backward: float
    held: int
    kept: int
    sent: int
    trains: bool = True
    weights: int = 0


class Stage(Value, frozen=True):
    """A stage of a placement.

    Parameters
    ----------
    start, stop : int
        Its pieces, from `start` up to `stop` without it.
    last : str
        Name of its last layer.
    forward, backward : float
        Time of a micro-batch [s].
    memory : int
        Bytes that it holds at most; see the module's equation.
    sent : int
        Bytes of a micro-batch's output.
    """

    start: int
    stop: int
    last: str
    forward: float
    backward: float
    memory: int
    sent: int

    @property
    def seconds(self) -> float:
        """Time of a micro-batch, forward and backward [s]."""
        return self.forward + self.backward


class Placement(Value, frozen=True):
    """Which pieces are on which stage.

    Parameters
    ----------
    stages : tuple of Stage
        In the order of the model.
    micro_batches : int
        Micro-batches of a batch.
    """

    stages: tuple[Stage, ...]
    micro_batches: int

    @property
    def cuts(self) -> tuple[str, ...]:
        """Names of the layers after which the model is cut."""
        return tuple(stage.last for stage in self.stages[:-1])

    @property
    def bubble(self) -> float:
        """Predicted share of the time in which stages wait, without the time on the line."""
        schedule = one_forward_one_backward(len(self.stages), self.micro_batches)
        times = ([s.forward for s in self.stages], [s.backward for s in self.stages])
        return bubble_share(timetable(schedule, *times))

    def table(self) -> list[str]:
        r"""Return the placement as lines of text.

        Examples
        --------
        >>> costs = {"held": 3_000_000, "weights": 1_000_000, "kept": 2_000_000, "sent": 8000}
        >>> pieces = [Piece(name=n, forward=0.01, backward=0.02, **costs) for n in ("a", "b")]
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
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        return [
            *(_line(row, widths) for row in (heads, *rows)),
            f"Stages wait {self.bubble:.0%} of the time (predicted): {len(self.stages)} stages, "
            f"{self.micro_batches} micro-batches.".replace("%", " %"),
        ]


def choose_cuts(
    pieces: Sequence[Piece],
    stages: int,
    micro_batches: int,
    *,
    given: int = 0,
    limit: float | None = None,
) -> Placement:
    """Cut a model so that the slowest stage is as fast as possible.

    Parameters
    ----------
    pieces : sequence of Piece
        In the order of the model.
    stages, micro_batches : int
        At least 1.
    given : int, default 0
        Bytes of a micro-batch's input of the model.
    limit : float, optional
        Most bytes of a stage; see the module's equation.

    Raises
    ------
    ConfigurationError
        If there are fewer pieces with weights than stages, or no way to cut fits the memory.
    """
    costs = _Costs(pieces, stages, micro_batches, given)
    trained = sum(piece.trains for piece in pieces)
    if trained < stages:
        names = ", ".join(piece.name for piece in pieces[:-1]) or "nowhere"
        raise ConfigurationError(
            f"The model has {trained} parts with weights of their own that can be apart, for "
            f"{stages} workers. It can be cut after: {names}. Use fewer workers."
        )
    least = _minimax(len(pieces), stages, costs.memory, costs.trains)
    if limit is not None and costs.largest(costs.memory, least) > limit:
        raise ConfigurationError(
            f"A stage may hold {limit / 1e6:.3g} MB (memory_limit), and the best way to cut needs "
            f"{costs.largest(costs.memory, least) / 1e6:.3g} MB. {costs.told_vectors} Use more "
            "workers, more micro-batches or a smaller batch, or give each worker more memory."
        )
    most = math.inf if limit is None else limit

    def fits(stage: int, start: int, stop: int) -> bool:
        return costs.trains(stage, start, stop) and costs.memory(stage, start, stop) <= most

    fastest = _minimax(len(pieces), stages, costs.seconds, fits)
    bound = SLACK * costs.largest(costs.seconds, fastest)
    bounds = _minimax(
        len(pieces),
        stages,
        costs.memory,
        lambda *block: fits(*block) and costs.seconds(*block) <= bound,
    )
    return costs.placement(bounds)


def given_cuts(
    pieces: Sequence[Piece],
    names: Sequence[str],
    micro_batches: int,
    *,
    given: int = 0,
    limit: float | None = None,
) -> Placement:
    """Cut a model after the layers of these names; other parameters as in `choose_cuts`.

    Raises
    ------
    ConfigurationError
        If the model cannot be cut there, or a stage does not fit the memory. Names the layers after
        which it can be cut, or the stage.
    """
    known = {piece.name: number for number, piece in enumerate(pieces[:-1], start=1)}
    places = [known.get(name) for name in names]
    ordered = [place for place in places if place is not None]
    if len(ordered) < len(places) or ordered != sorted({*ordered}):
        raise ConfigurationError(
            "Cuts are names of layers after which a single tensor leads on, in the order of the "
            f"model. It can be cut after: {', '.join(known) or 'none'}. Received: {list(names)}."
        )
    bounds = (0, *ordered, len(pieces))
    costs = _Costs(pieces, len(bounds) - 1, micro_batches, given)
    for stage, (start, stop) in enumerate(pairwise(bounds)):
        if not costs.trains(stage, start, stop):
            raise ConfigurationError(
                f"Each stage has weights that are trained, and the one up to "
                f"{pieces[stop - 1].name!r} has none. Received: cuts={list(names)}."
            )
    placement = costs.placement(bounds)
    largest = max(placement.stages, key=lambda stage: stage.memory)
    if limit is not None and largest.memory > limit:
        raise ConfigurationError(
            f"A stage may hold {limit / 1e6:.3g} MB (memory_limit), and the one up to "
            f"{largest.last!r} needs {largest.memory / 1e6:.3g} MB. {costs.told_vectors} Received: "
            f"cuts={list(names)}. Cut elsewhere or more often, use more micro-batches or a smaller "
            "batch, or give each worker more memory."
        )
    return placement


class _Costs:
    """Costs of a block of pieces on a stage."""

    def __init__(
        self, pieces: Sequence[Piece], stages: int, micro_batches: int, given: int
    ) -> None:
        self._pieces, self._stages, self._micro_batches = pieces, stages, micro_batches
        self._inputs = [given, *(piece.sent for piece in pieces)]
        self._held, self._kept, self._weights, self._trained = (
            [0, *accumulate(values)]
            for values in (
                [piece.held for piece in pieces],
                [piece.kept for piece in pieces],
                [piece.weights for piece in pieces],
                [int(piece.trains) for piece in pieces],
            )
        )
        self._seconds = [0.0, *accumulate(piece.forward + piece.backward for piece in pieces)]

    @property
    def vectors(self) -> int:
        """Bytes of the vectors of all weights."""
        return VECTORS * self._weights[-1]

    @property
    def told_vectors(self) -> str:
        """What these vectors are, in words."""
        return (
            f"The last stage's worker has {self.vectors / 1e6:.3g} MB for {VECTORS} vectors of all "
            "weights, for any number of workers."
        )

    def seconds(self, _: int, start: int, stop: int) -> float:
        return self._seconds[stop] - self._seconds[start]

    def memory(self, stage: int, start: int, stop: int) -> float:
        kept = self._kept[stop] - self._kept[start] + self._inputs[start]
        flying = in_flight(self._stages, stage, self._micro_batches)
        last = stage + 1 == self._stages
        copies = self.vectors if last else self._weights[stop] - self._weights[start]
        return self._held[stop] - self._held[start] + flying * kept + copies

    def trains(self, _: int, start: int, stop: int) -> bool:
        return self._trained[stop] > self._trained[start]

    def largest(self, cost: Callable[[int, int, int], float], bounds: Sequence[int]) -> float:
        return max(cost(stage, *block) for stage, block in enumerate(pairwise(bounds)))

    def placement(self, bounds: Sequence[int]) -> Placement:
        stages = [
            Stage(
                start=start,
                stop=stop,
                last=self._pieces[stop - 1].name,
                forward=math.fsum(piece.forward for piece in self._pieces[start:stop]),
                backward=math.fsum(piece.backward for piece in self._pieces[start:stop]),
                memory=int(self.memory(stage, start, stop)),
                sent=self._pieces[stop - 1].sent,
            )
            for stage, (start, stop) in enumerate(pairwise(bounds))
        ]
        return Placement(stages=tuple(stages), micro_batches=self._micro_batches)


def _minimax(
    pieces: int,
    stages: int,
    cost: Callable[[int, int, int], float],
    allowed: Callable[[int, int, int], bool],
) -> tuple[int, ...]:
    """Return bounds of contiguous blocks whose largest cost is smallest.

    `cost` and `allowed` take a stage and its block's start and stop. There must be a way.
    """
    # best[stop]: the least largest cost of the stages so far, over the pieces before `stop`.
    best: list[float] = [0.0] + [math.inf] * pieces
    origins: list[list[int]] = []
    for stage in range(stages):
        found, origin = [math.inf] * (pieces + 1), [-1] * (pieces + 1)
        for stop in range(stage + 1, pieces + 1):
            for start in range(stage, stop):
                if best[start] == math.inf or not allowed(stage, start, stop):
                    continue
                largest = max(best[start], cost(stage, start, stop))
                if largest < found[stop]:
                    found[stop], origin[stop] = largest, start
        best = found
        origins.append(origin)
    bounds = [pieces]
    for origin in reversed(origins):
        bounds.append(origin[bounds[-1]])
    return tuple(reversed(bounds))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    left = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
    right = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
    return "  ".join([*left, *right]).rstrip()

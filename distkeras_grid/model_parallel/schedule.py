"""The order in which stages compute the micro-batches of a batch: one forward, one backward (1F1B).

Stage r of S computes S - r - 1 micro-batches forward, and then, in turn, one forward and one
backward, until all are done (Narayanan et al. 2019; Narayanan et al. 2021, section 2.2). So at most
S - r micro-batches are in flight on it, however many there are. The order is a value: it is checked
without any device.

All stages of equal speed and no time on the line: of M micro-batches, each stage waits

    (S - 1) / (M + S - 1)

of the time. This is the bubble at the start and at the end of each batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.frozen_struct import FrozenStruct


class Pass(FrozenStruct, frozen=True):
    """A stage computes a micro-batch, forward or backward."""

    stage: int  # stage and micro_batch: Their numbers, from 0
    micro_batch: int
    backward: bool = False  # Whether it is the backward pass


class TimedPass(FrozenStruct, frozen=True):
    """A pass with its time."""

    stage: int  # stage and micro_batch and backward: As in `Pass`
    micro_batch: int
    backward: bool
    started: float  # started and seconds: Start, on any clock, and duration [s]
    seconds: float

    @property
    def ended(self) -> float:
        """End of the pass [s]."""
        return self.started + self.seconds


#: The passes of each stage, in the order in which it computes them.
Schedule: TypeAlias = tuple[tuple[Pass, ...], ...]


def in_flight(stages: int, stage: int, micro_batches: int) -> int:
    """Return how many micro-batches are in flight on a stage at most.

    Examples
    --------
    >>> [in_flight(4, stage, micro_batches=8) for stage in range(4)]
    [4, 3, 2, 1]
    """
    return min(stages - stage, micro_batches)


def one_forward_one_backward(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of a batch.

    `stages, micro_batches`: at least 1.

    Examples
    --------
    >>> first, last = one_forward_one_backward(2, 3)
    >>> ["FB"[each.backward] + str(each.micro_batch) for each in first]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    >>> ["FB"[each.backward] + str(each.micro_batch) for each in last]
    ['F0', 'B0', 'F1', 'B1', 'F2', 'B2']
    """
    if stages < 1 or micro_batches < 1:
        raise ConfigurationError(
            "A pipeline has at least one stage and one micro-batch. Received: "
            f"{stages} and {micro_batches}."
        )
    return tuple(_of_stage(stage, stages, micro_batches) for stage in range(stages))


def _of_stage(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    ahead = in_flight(stages, stage, micro_batches) - 1
    order = [Pass(stage=stage, micro_batch=number) for number in range(ahead)]
    for number in range(micro_batches):
        if number + ahead < micro_batches:
            order.append(Pass(stage=stage, micro_batch=number + ahead))
        order.append(Pass(stage=stage, micro_batch=number, backward=True))
    return tuple(order)


def predicted_bubble(
    forward: Sequence[float], backward: Sequence[float], micro_batches: int
) -> float:
    """Return the largest share of the time in which stages wait, without the time on the line.

    The slowest passes set the pace, and the others fill and empty the pipeline around them. If
    stages differ, they may wait a little less (2 % of the time in the mean of random pipelines).

    `forward, backward`: time of a micro-batch on each stage [s].

    Examples
    --------
    >>> round(predicted_bubble([1, 1, 1], [2, 2, 2], micro_batches=4), 6)  # (S - 1) / (M + S - 1)
    0.333333
    """
    busy = math.fsum((*forward, *backward))
    span = (micro_batches - 1) * (max(forward) + max(backward)) + busy
    return max(0.0, 1.0 - micro_batches * busy / (len(forward) * span)) if span > 0 else 0.0


def bubble_share(passes: Iterable[TimedPass]) -> float:
    """Return the share of the time in which stages wait, from the first start to the last end."""
    known = list(passes)
    if not known:
        return 0.0
    span = max(each.ended for each in known) - min(each.started for each in known)
    stages = len({each.stage for each in known})
    busy = math.fsum(each.seconds for each in known)
    return max(0.0, 1.0 - busy / (stages * span)) if span > 0 else 0.0

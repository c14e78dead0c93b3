"""The order in which stages compute the micro-batches of a batch: one forward, one backward (1F1B).

Stage r of S computes S - r - 1 micro-batches forward, and then, in turn, one forward and one
backward, until all are done (Narayanan et al. 2019; Narayanan et al. 2021, section 2.2). So at most
S - r micro-batches are in flight on it, however many there are. The order is a value: it is checked
and timed without any device.

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

    def needs(self, stages: int) -> tuple[Pass, ...]:
        """Return the passes whose results this one needs, of `stages` stages.

        Examples
        --------
        >>> [each.stage for each in Pass(stage=1, micro_batch=0, backward=True).needs(3)]
        [1, 2]
        """
        if not self.backward:
            return (_at(self, self.stage - 1),) if self.stage else ()
        own = Pass(stage=self.stage, micro_batch=self.micro_batch)
        return (own,) if self.stage == stages - 1 else (own, _at(self, self.stage + 1))


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


def _at(step: Pass, stage: int) -> Pass:
    return Pass(stage=stage, micro_batch=step.micro_batch, backward=step.backward)


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


def timetable(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    line: Sequence[float] = (),
) -> tuple[TimedPass, ...]:
    """Return when each pass runs if stages take these times.

    `forward, backward`: time of a micro-batch on each stage [s].
    `line`: time from each stage to the next one, in either direction [s]; nothing if empty.
    """
    stages = len(schedule)
    between = [*line, *[0.0] * (stages - len(line))]
    ended: dict[Pass, float] = {}
    free = [0.0] * stages
    places = [0] * stages
    passes: list[TimedPass] = []
    while len(passes) < sum(map(len, schedule)):
        before = len(passes)
        for stage, order in enumerate(schedule):
            while places[stage] < len(order):
                step = order[places[stage]]
                needed = step.needs(stages)
                if not all(each in ended for each in needed):
                    break
                ready = (ended[each] + _way(between, each.stage, stage) for each in needed)
                timed = TimedPass(
                    stage=stage,
                    micro_batch=step.micro_batch,
                    backward=step.backward,
                    started=max(free[stage], *ready, 0.0),
                    seconds=(backward if step.backward else forward)[stage],
                )
                passes.append(timed)
                free[stage] = ended[step] = timed.ended
                places[stage] += 1
        if len(passes) == before:
            waiting = [
                order[place]
                for order, place in zip(schedule, places, strict=True)
                if place < len(order)
            ]
            raise ConfigurationError(f"Stages wait for each other. Received: {waiting}.")
    return tuple(passes)


def _way(line: Sequence[float], one: int, other: int) -> float:
    return line[min(one, other)] if one != other else 0.0


def bubble_share(passes: Iterable[TimedPass]) -> float:
    """Return the share of the time in which stages wait, from the first start to the last end.

    Examples
    --------
    >>> schedule = one_forward_one_backward(3, 4)
    >>> round(bubble_share(timetable(schedule, [1, 1, 1], [2, 2, 2])), 6)  # 2 / 6
    0.333333
    """
    known = list(passes)
    if not known:
        return 0.0
    span = max(each.ended for each in known) - min(each.started for each in known)
    stages = len({each.stage for each in known})
    busy = math.fsum(each.seconds for each in known)
    return max(0.0, 1.0 - busy / (stages * span)) if span > 0 else 0.0

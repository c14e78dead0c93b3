"""The order in which stages compute the micro-batches of a batch: one forward, one backward (1F1B).

Stage r of S computes S - r - 1 micro-batches forward, and then, in turn, one forward and one
backward, until all are done (Narayanan et al. 2019; Narayanan et al. 2021, section 2.2). So at most
S - r micro-batches are in flight on it, however many there are. The order is a value: it is checked
without any device.

If all stages are equally fast and the line takes no time, each stage waits, of M micro-batches,

    (S - 1) / (M + S - 1)

of the time. This is the bubble at the start and at the end of each batch.
"""

from __future__ import annotations

from distkeras_grid.frozen_struct import FrozenStruct


class Pass(FrozenStruct, frozen=True):
    """A stage computes a micro-batch, forward or backward."""

    stage: int  # stage and micro_batch: Their numbers, from 0
    micro_batch: int
    backward: bool = False  # Whether it is the backward pass


def one_forward_one_backward(stages: int, micro_batches: int) -> tuple[tuple[Pass, ...], ...]:
    """Return the passes of each stage, in the order in which it computes them.

    `stages, micro_batches`: at least 1.

    Examples
    --------
    >>> first, last = one_forward_one_backward(2, 3)
    >>> ["FB"[each.backward] + str(each.micro_batch) for each in first]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    >>> ["FB"[each.backward] + str(each.micro_batch) for each in last]
    ['F0', 'B0', 'F1', 'B1', 'F2', 'B2']
    """
    return tuple(_of_stage(stage, stages, micro_batches) for stage in range(stages))


def _of_stage(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    # Forward passes before the first backward pass can begin.
    ahead = min(stages - stage, micro_batches) - 1
    order = [Pass(stage=stage, micro_batch=number) for number in range(ahead)]
    for number in range(micro_batches):
        if number + ahead < micro_batches:
            order.append(Pass(stage=stage, micro_batch=number + ahead))
        order.append(Pass(stage=stage, micro_batch=number, backward=True))
    return tuple(order)

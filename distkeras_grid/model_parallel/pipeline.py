"""Micro-batches through the stages: the master sends each pass as soon as the schedule allows it.

A device computes requests in the order in which they come, so its place in the schedule is what has
been sent to it. Activations and gradients pass through the master, which is the last stage: it is
connected to all devices, and no two devices need to reach each other.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.rpc import Answer, Array
from distkeras_grid.model_parallel.schedule import Pass, one_forward_one_backward

#: Computes a micro-batch on the last stage: its number and input; returns the input's gradient.
LastStage: TypeAlias = Callable[[int, Array], Array]


def train(group: DeviceGroup, inputs: Sequence[Array], last: LastStage, first_call: int) -> None:
    """Train a batch on all stages, and let the other ones take their steps.

    Device n computes stage n - 1, the master the last one.

    `inputs`: the model's input of each micro-batch. They must not change meanwhile.
    `first_call`: number of the first micro-batch; no other pass has it or those that follow.
    """
    if not group.others:
        for number, x in enumerate(inputs):
            last(number, x)
        return
    _Batch(group, inputs, first_call).run(last)
    for number in group.others:
        group.call(number, "step", answers=0)


def infer(group: DeviceGroup, x: Array) -> Array:
    """Return the output of the stages before the last one, without training."""
    for number in group.others:
        _, (x,) = group.result(group.call(number, "forward", x, number=0, training=False)[0])
    return x


class _Batch:
    """A batch on its way through the stages.

    Answers come in threads of the lines. Each one may let the next pass of a stage begin.
    """

    def __init__(self, group: DeviceGroup, inputs: Sequence[Array], first_call: int) -> None:
        self._group, self._first_call = group, first_call
        self._last = len(group.others)
        schedule = one_forward_one_backward(self._last + 1, len(inputs))
        self._orders = [deque(order) for order in schedule[: self._last]]
        self._ready = {
            Pass(stage=0, micro_batch=number): array for number, array in enumerate(inputs)
        }
        self._lock = threading.Lock()
        # Each answer, with what it has for the last stage, or what went wrong. All are put here,
        # because the limit is for one answer, and several stages lie before the last one.
        self._arrived: queue.SimpleQueue[tuple[Pass, Array | None] | BaseException] = (
            queue.SimpleQueue()
        )

    def run(self, last: LastStage) -> None:
        """Compute all micro-batches."""
        left = len(self._ready)
        self._advance(0)
        while left:
            try:
                arrived = self._arrived.get(timeout=self._group.seconds)
            except queue.Empty:
                raise self._group.late() from None
            if isinstance(arrived, BaseException):
                raise arrived
            step, array = arrived
            if array is None:
                left -= step.backward and not step.stage
                continue
            gradient = last(step.micro_batch, array)
            self._make_ready(self._last - 1, step.micro_batch, gradient, backward=True)

    def _make_ready(self, stage: int, number: int, array: Array, *, backward: bool) -> None:
        with self._lock:
            self._ready[Pass(stage=stage, micro_batch=number, backward=backward)] = array
        self._advance(stage)

    def _advance(self, stage: int) -> None:
        """Send a stage the passes that are next on it, as far as what they need is there."""
        asked: list[tuple[Pass, Future[Answer]]] = []
        with self._lock:
            order = self._orders[stage]
            while order and order[0] in self._ready:
                step = order.popleft()
                values: dict[str, Any] = {"number": self._first_call + step.micro_batch}
                if not step.backward:
                    values["training"] = True
                name, x = "backward" if step.backward else "forward", self._ready.pop(step)
                # Within the lock, so that requests are sent in the order of the schedule.
                (future,) = self._group.call(stage + 1, name, x, **values)
                asked.append((step, future))
        for step, future in asked:
            future.add_done_callback(partial(self._answered, step))

    def _answered(self, step: Pass, future: Future[Answer]) -> None:
        # A future swallows what its callbacks raise.
        try:
            self._pass_on(step, future)
        except Exception as error:  # noqa: BLE001 - raised again where the batch runs
            self._arrived.put(error)

    def _pass_on(self, step: Pass, future: Future[Answer]) -> None:
        _, arrays = self._group.result(future)
        if len(arrays) != int(not step.backward or step.stage > 0):
            raise RemoteProtocolError(f"An answer to {step!r} is expected. Received: {arrays!r}.")
        if not step.backward and step.stage + 1 == self._last:
            self._arrived.put((step, arrays[0]))
            return
        self._arrived.put((step, None))
        if not step.backward:
            self._make_ready(step.stage + 1, step.micro_batch, arrays[0], backward=False)
        elif step.stage:
            self._make_ready(step.stage - 1, step.micro_batch, arrays[0], backward=True)


def micro_batch_bounds(rows: int, micro_batches: int) -> list[tuple[int, int]]:
    """Return the rows of each micro-batch; all have equally many, or one less.

    A batch with fewer rows than micro-batches has one micro-batch for each row.

    Examples
    --------
    >>> micro_batch_bounds(10, 4)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    >>> micro_batch_bounds(2, 4)
    [(0, 1), (1, 2)]
    """
    count = min(rows, micro_batches)
    bounds = [rows * number // count for number in range(count + 1)]
    return list(itertools.pairwise(bounds))


def scaled(x: np.ndarray, scale: float, offset: float) -> Array:
    """Return an input as stages receive it: ``x * scale + offset`` in float32."""
    array = np.asarray(x, np.float32)
    return (
        array if (scale, offset) == (1.0, 0.0) else array * np.float32(scale) + np.float32(offset)
    )

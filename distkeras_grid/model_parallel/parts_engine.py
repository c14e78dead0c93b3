"""The engine of a model in parts: the master trains the last one, and devices those before it.

The parts on devices take steps of their own with the gradients that the master sends back, and keep
their own weights. These travel once per window: to the server, and from there to the next attempt
if this one dies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from distkeras_grid.engine.base import State
from distkeras_grid.engine.keras_model import model_variables, weight_layout
from distkeras_grid.model_parallel.device_group import DeviceGroup, GroupEngine
from distkeras_grid.records import WindowResult
from distkeras_grid.rows import RowBlock, aligned_empty
from distkeras_grid.weights import Vector, WeightLayout

#: Where a part's variables are in the whole vector, ``(start, stop)`` for each.
Places = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class FullModelLayout:
    """What the master must know of the whole model."""

    layout: WeightLayout  # Layout of the whole vector
    places: tuple[Places, ...]  # Where the weights of each part are in it, the master's last

    @classmethod
    def of(cls, model: Any, parts: Sequence[Any]) -> FullModelLayout:
        """Return the layout of a model with these parts, the master's last."""
        return cls(weight_layout(model), tuple(places(model, part) for part in parts))


def places(model: Any, part: Any) -> Places:
    """Return where the weights of a part are in the flat vector of the whole model."""
    sizes = [variable.size for variable in weight_layout(model).variables]
    bounds = pairwise(np.cumsum([0, *sizes]).tolist())
    known: Mapping[int, tuple[int, int]] = {
        id(variable): bound
        for variable, bound in zip(model_variables(model).all, bounds, strict=True)
    }
    return tuple(known[id(variable)] for variable in model_variables(part).all)


def gather(vector: Vector, places: Places) -> Vector:
    """Return a part's own vector from the whole one.

    Examples
    --------
    >>> gather(np.arange(6, dtype=np.float32), ((4, 6), (0, 1))).tolist()
    [4.0, 5.0, 0.0]
    """
    parts = [vector[start:stop] for start, stop in places]
    return np.concatenate(parts)


def scatter(part: Vector, places: Places, vector: Vector) -> None:
    """Write a part's own vector into the whole one.

    Examples
    --------
    >>> vector = np.zeros(6, np.float32)
    >>> scatter(np.array([4, 5, 1], np.float32), ((4, 6), (0, 1)), vector)
    >>> vector.tolist()
    [1.0, 0.0, 0.0, 0.0, 4.0, 5.0]
    """
    begin = 0
    for start, stop in places:
        vector[start:stop] = part[begin : begin + stop - start]
        begin += stop - start


class RemoteWeights:
    """The weights of the parts on devices, which travel once per window.

    `places`: where those of each part are in the whole vector.
    """

    def __init__(self, group: DeviceGroup, places: Sequence[Places]) -> None:
        self._group, self._places = group, places
        # Of what the devices have, digests: copies would be as large as the model.
        self._digests: list[bytes] = []

    def put(self, vector: Vector) -> None:
        """Send the devices their weights, unless they have them already."""
        parts = [gather(vector, places) for places in self._places]
        digests = list(map(_digest, parts))
        if digests != self._digests:
            self._group.each("put", parts)
            self._digests = digests

    def change(self) -> None:
        """Note that the devices take steps from now on."""
        self._digests = []

    def collect(self, vector: Vector) -> None:
        """Write the weights of the devices into the whole vector."""
        parts = [part for (part,) in self._group.each("get")]
        self._digests = list(map(_digest, parts))
        for part, places in zip(parts, self._places, strict=True):
            scatter(part, places, vector)


def _digest(part: Vector) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(part).data).digest()


class PartsEngine(GroupEngine):
    """An engine of the master's part, with the weights and states of the parts on its devices.

    `names`: of these parts, in the state of a checkpoint.
    """

    def __init__(
        self, engine: Any, group: DeviceGroup, names: Sequence[str], whole: FullModelLayout
    ) -> None:
        super().__init__(engine, group)
        self._names, self.layout = names, whole.layout
        *others, self._places = whole.places
        self._others = RemoteWeights(group, others)

    def weights(self) -> Vector:
        """Return a copy of the whole model's weights as a flat vector."""
        vector = np.empty(self.layout.size, np.float32)
        self._collect(self._engine.weights(), vector)
        return vector

    def warm_up(self, block: RowBlock) -> float:
        """Compile on all devices, and leave them as they were; see `KerasEngine`."""
        before, states = self.weights(), self._group.each("get_state")
        self._others.change()
        with self._group.watched():
            seconds: float = self._engine.warm_up(block)
        self._others.put(before)
        self._group.each("put_state", [packed for (packed,) in states])
        self._group.begin_training()
        return seconds

    def run(self, before: Vector, blocks: Iterable[RowBlock], after: Vector) -> WindowResult:
        """Train one window; see `KerasEngine`."""
        own, result_part = (aligned_empty((self._engine.layout.size,)) for _ in range(2))
        np.copyto(own, gather(before, self._places))
        self._others.put(before)
        # The devices take steps during the window, also if it fails.
        self._others.change()
        with self._group.watched():
            result: WindowResult = self._engine.run(own, blocks, result_part)
        self._collect(result_part, after)
        return result

    def evaluate(self, weights: Vector, blocks: Iterable[RowBlock]) -> dict[str, float]:
        """Return loss and metrics of the whole model's weights on rows; see `KerasEngine`."""
        self._others.put(weights)
        with self._group.watched():
            figures: dict[str, float] = self._engine.evaluate(gather(weights, self._places), blocks)
        return figures

    def set_schedule_offset(self, steps: int) -> None:
        """Let the schedules of all parts go on after `steps` batches; see `Engine`."""
        self._engine.set_schedule_offset(steps)
        self._group.each("set_schedule_offset", steps=steps)

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate of all parts."""
        self._engine.set_learning_rate(value)
        self._group.each("set_rate", value=value)

    def state(self) -> State:
        """Return copies of everything but the weights that training changes."""
        states = self._group.each("get_state")
        return {
            **self._engine.state(),
            **{name: packed for name, (packed,) in zip(self._names, states, strict=True)},
        }

    def restore(self, state: State) -> None:
        """Go on from what `state` returned."""
        self._engine.restore(state)
        self._group.each("put_state", [np.asarray(state[name]) for name in self._names])

    def outcome(self) -> State:
        """Return nothing: no process has the whole model."""
        return {}

    def _collect(self, own: Vector, vector: Vector) -> None:
        """Write the weights of all parts into the whole vector."""
        scatter(own, self._places, vector)
        self._others.collect(vector)

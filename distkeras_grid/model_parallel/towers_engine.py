"""The engine of a model with towers on several devices, and the first one on the master's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from numpy.typing import NDArray

from distkeras_grid.model_parallel.parts_engine import PartsEngine
from distkeras_grid.model_parallel.rpc import Array
from distkeras_grid.model_parallel.tower_model import concatenate, standalone_copy


def head_of(model: Any, towers: Sequence[Any], master: Any) -> Any:
    """Return the master as a compiled model of its own, whose inputs are the towers' outputs."""
    inputs = [keras.Input(tower.outputs[0].shape[1:]) for tower in towers]
    head = keras.Model(inputs, concatenate(inputs, standalone_copy(master)))
    head.compile_from_config(model.get_compile_config())
    return head


class TowersEngine(PartsEngine):
    """Trains the master model, and each tower as a part of its own."""

    def _batch(self, x: Array, rest: Sequence[NDArray[Any]]) -> None:
        number = next(self._calls)
        gradients = self._last(self._outputs(x, number, training=True), rest, 1.0)
        for part in self._in_order():
            self._group.call(part, "backward", gradients[part], number=number)
            self._group.call(part, "step", answers=0)

    def _before(self, x: Array) -> Sequence[Array]:
        return self._outputs(x, 0, training=False)

    def _outputs(self, x: Array, number: int, *, training: bool) -> list[Array]:
        answers = {
            part: self._group.call(part, "forward", x, number=number, training=training)[0]
            for part in self._in_order()
        }
        return [self._group.result(answers[part])[1][0] for part in self._group.parts]

    def _in_order(self) -> list[int]:
        """Return the towers, the master's own last: the others compute at the same time."""
        return sorted(self._group.parts, reverse=True)

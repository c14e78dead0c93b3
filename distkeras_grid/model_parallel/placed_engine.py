"""The engine of a model in stages: the master trains the last stage, and devices all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.parts_engine import FullModelLayout, PartsEngine
from distkeras_grid.model_parallel.pipeline import infer, micro_batch_bounds, train
from distkeras_grid.model_parallel.rpc import Array


class PlacedEngine(PartsEngine):
    """Trains a model in stages, batch by batch in micro-batches.

    Each micro-batch's loss is weighted by its share of the rows, so that the sums of the gradients
    are those of the batch, and each stage takes one step for a batch.

    `on_waiting`: called once, with the share of the time of a batch in which stages waited.
    """

    def __init__(
        self,
        model: Any,
        whole: FullModelLayout,
        group: DeviceGroup,
        micro_batches: int,
        *,
        on_waiting: Callable[[float], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, whole, group, **options)
        self._micro_batches = micro_batches
        self._on_waiting = on_waiting

    def _batch(self, x: Array, rest: Sequence[NDArray[Any]]) -> None:
        bounds = micro_batch_bounds(len(x), self._micro_batches)

        def last(number: int, x_part: Array) -> Array:
            start, stop = bounds[number]
            parts = [array[start:stop] for array in rest]
            (dx,) = self._last([x_part], parts, (stop - start) / len(x))
            return dx

        inputs = [x[start:stop] for start, stop in bounds]
        waited = train(self._group, inputs, last, next(self._calls) * self._micro_batches)
        if self._on_waiting is not None and waited is not None and not self._warming:
            self._on_waiting(waited)
            self._on_waiting = None

    def _before(self, x: Array) -> Sequence[Array]:
        return [infer(self._group, x)]

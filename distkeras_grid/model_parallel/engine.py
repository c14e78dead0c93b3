"""The TensorFlow engine of a model with convolutions that several devices compute."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from distkeras_grid.engine.tensorflow import TensorFlowEngine
from distkeras_grid.model_parallel.devices import OBSERVATIONS, Devices
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.split_convolution_layer import install, uninstall
from distkeras_grid.model_parallel.time_model import SplitPlan
from distkeras_grid.rows import RowBlock


class DividedEngine(TensorFlowEngine):
    """Trains a model whose convolutions are divided, if `warm_up` finds that this pays."""

    def __init__(
        self,
        model: Any,
        layers: Sequence[tuple[Any, Convolution]],
        devices: Devices,
        planned: Callable[[SplitPlan], None],
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self._layers = layers
        self._devices = devices
        self._planned = planned

    def warm_up(self, block: RowBlock) -> float:
        """Compile and measure the model as it is and then divided; return a block's time [s].

        If dividing does not pay, the model is as it was again, with what was compiled for it.
        """
        whole = self._seconds(block)
        as_it_was = self._functions, self.jit
        self._functions, self.jit = {}, False
        install(self._layers, self._devices)
        divided = self._seconds(block)
        plan = self._devices.decide(whole, divided)
        if not plan.shares:
            uninstall(self._layers)
            self._functions, self.jit = as_it_was
        self._planned(plan)
        return (divided if plan.shares else whole) * block.steps

    def _seconds(self, block: RowBlock) -> float:
        """Return the time of a batch: a median, because a block may be a single batch."""
        times = math.ceil(OBSERVATIONS / block.steps)
        taken = [super(DividedEngine, self).warm_up(block) for _ in range(times)]
        return statistics.median(taken) / block.steps

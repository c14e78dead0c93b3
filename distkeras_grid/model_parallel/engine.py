"""The TensorFlow engine of a model with convolutions that several devices compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distkeras_grid.engine.tensorflow import TensorFlowEngine
from distkeras_grid.model_parallel.devices import Devices
from distkeras_grid.model_parallel.time_model import Plan
from distkeras_grid.rows import Block


class DividedEngine(TensorFlowEngine):
    """Trains a model into which `install` has put the devices.

    Parameters
    ----------
    model : keras.Model
        As in `TensorFlowEngine`.
    devices : Devices
        The devices, already measured.
    planned : callable
        Called with the plan once the time of a whole batch is known.
    **options
        As in `TensorFlowEngine`. XLA compiles nothing, because it cannot call the devices.
    """

    def __init__(
        self, model: Any, devices: Devices, planned: Callable[[Plan], None], **options: Any
    ) -> None:
        super().__init__(model, **{**options, "jit": False})
        self._devices = devices
        self._planned = planned

    def warm_up(self, block: Block) -> float:
        """Compile, and measure a block with all layers whole; return a block's planned time [s].

        Parameters
        ----------
        block : Block
            A block like those of the windows.
        """
        self._devices.keep_whole()
        planned = self._devices.divide_again(whole=super().warm_up(block) / block.steps)
        self._planned(planned)
        return planned.divided * block.steps

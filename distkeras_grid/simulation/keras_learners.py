"""Simulated workers that share one engine of a real model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.base import State
from distkeras_grid.records import WindowResult
from distkeras_grid.rows import RowBlock

if TYPE_CHECKING:
    from distkeras_grid.engine.base import ModelEngine
    from distkeras_grid.weights import StateSection, Vector


class _SharedEngine:
    """The engine of all learners, and the learner whose state is in it."""

    def __init__(self, engine: ModelEngine) -> None:
        self.engine = engine
        self.owner: KerasLearner | None = None
        self.initial = engine.device_state()

    def give_to(self, learner: KerasLearner) -> None:
        """Put a learner's state into the engine, and return the former state to its learner."""
        before = self.engine.swap_state(learner.device_state)
        if self.owner is not None and self.owner is not learner:
            self.owner.device_state = before
        self.owner = learner

    def first(self, seed: Sequence[int] | None) -> Sequence[Any]:
        """Return the state in which a learner starts."""
        if seed is None:
            return self.initial
        self.engine.set_seed(seed)
        return self.engine.swap_state(self.initial)


class KerasLearner:
    """One worker's model; `keras_learners` builds all of a run.

    All learners share one engine, which is compiled once. While a learner does not train, its
    optimizer state and its random generators are kept outside.
    """

    def __init__(self, shared: _SharedEngine, seed: Sequence[int] | None) -> None:
        self.layout = shared.engine.layout
        self.device_state: Sequence[Any] = shared.first(seed)
        self._shared = shared

    def weights(self) -> Vector:
        """Return a copy of the model's initial weights."""
        return self._shared.engine.weights()

    def run(self, before: Vector, blocks: Iterable[RowBlock], after: Vector) -> WindowResult:
        """Train one window; see `distkeras_grid.engine.base.Engine`."""
        return self._engine().run(before, blocks, after)

    def evaluate(self, weights: Vector, blocks: Iterable[RowBlock]) -> dict[str, float]:
        """Return loss and metrics of weights; see `distkeras_grid.engine.base.Engine`."""
        return self._engine().evaluate(weights, blocks)

    def apply(self, gradient: Vector, weights: Vector) -> None:
        """Step from `weights`; see `distkeras_grid.engine.base.Engine`."""
        self._engine().apply(gradient, weights)

    @property
    def step_section(self) -> StateSection:
        """What `step_state` holds."""
        return self._shared.engine.step_section

    def step_state(self) -> list[NDArray[Any]]:
        """Return the state of the optimizer of `apply`."""
        return self._engine().step_state()

    def load_step_state(self, state: Sequence[NDArray[Any]]) -> None:
        """Go on with another worker's optimizer state."""
        self._engine().load_step_state(state)

    def set_schedule_offset(self, steps: int) -> None:
        """Let schedules go on; see `distkeras_grid.engine.base.Engine`."""
        self._engine().set_schedule_offset(steps)

    def set_learning_rate(self, value: float) -> None:
        """Set the optimizer's learning rate from the next window on."""
        self._engine().set_learning_rate(value)

    def state(self) -> State:
        """Return optimizer state and random generators."""
        if self._shared.owner is self:
            return self._shared.engine.state()
        import keras

        # Wherever the backend keeps it.
        values = (keras.ops.convert_to_numpy(value) for value in self.device_state)
        return {str(number): np.array(value) for number, value in enumerate(values)}

    def outcome(self) -> State:
        """Return what training has left beside the weights; see `ModelEngine`."""
        return self._engine().outcome()

    def restore(self, state: State) -> None:
        """Go on from what `state` returned."""
        self._engine().restore(state)

    def _engine(self) -> ModelEngine:
        if self._shared.owner is not self:
            self._shared.give_to(self)
        return self._shared.engine


def keras_learners(
    engine: ModelEngine, workers: int, seed: int | None = None
) -> list[KerasLearner]:
    """Return one learner for each worker, all on one engine.

    The memory is that of the engine and, for each worker, its optimizer's variables and the vectors
    of `distkeras_grid.simulation.worker.SimulatedWorker`.

    `seed`: seed of dropout and other random layers, which differ from worker to worker. None keeps
    the model's own generators.
    """
    shared = _SharedEngine(engine)
    seeds = [None if seed is None else (seed, number) for number in range(workers)]
    return [KerasLearner(shared, own) for own in seeds]

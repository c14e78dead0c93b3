"""Keras models of simulated workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.base import WindowResult
from distkeras_grid.rows import Block

if TYPE_CHECKING:
    from distkeras_grid.engine.tensorflow import TensorFlowEngine
    from distkeras_grid.simulation.learners import State
    from distkeras_grid.weights import Vector


class _SharedEngine:
    """The engine of all learners, and whose state is in it."""

    def __init__(self, engine: TensorFlowEngine) -> None:
        import tensorflow as tf

        self.engine = engine
        self.owner: KerasLearner | None = None
        model = engine.model
        # Weights come with each window, and frozen ones stay as they are; the generators and
        # counters of layers are no floats.
        counters = [v for v in model.variables if not str(v.dtype).startswith(("float", "bfloat"))]
        self._variables = [*counters, *model.optimizer.variables, engine.schedule_offset]
        # One call: assigned one by one, they would take longer than a window.
        self._swap = tf.function(self._exchanged, autograph=False)
        self.initial = self.held()

    def give_to(self, learner: KerasLearner) -> None:
        """Put a learner's state into the engine, and that of the one before back to it."""
        before = self._swap(learner.tensors)
        if self.owner is not None and self.owner is not learner:
            self.owner.tensors = before
        self.owner = learner

    def held(self) -> list[Any]:
        """Return a copy of the state that is in the engine."""
        import tensorflow as tf

        return [tf.identity(variable.value) for variable in self._variables]

    def _exchanged(self, tensors: Sequence[Any]) -> list[Any]:
        before = self.held()
        for variable, tensor in zip(self._variables, tensors, strict=True):
            variable.value.assign(tensor)
        return before


class KerasLearner:
    """One worker's model; `keras_learners` builds all of a run.

    All share one engine, compiled once, and hand it on; the optimizer state and the random
    generators of those that do not train are kept beside it.

    Attributes
    ----------
    layout : WeightLayout
        Order and shapes of the variables in the flat vector.
    tensors : sequence of tf.Tensor
        Its state, while another learner has the engine.
    """

    def __init__(self, shared: _SharedEngine, seed: Sequence[int] | None) -> None:
        self.layout = shared.engine.layout
        self.tensors: Sequence[Any] = shared.initial
        self._shared = shared
        self._seed = seed

    def weights(self) -> Vector:
        """Return a copy of the weights that the model was given."""
        return self._shared.engine.weights()

    def run(self, before: Vector, blocks: Iterable[Block], after: Vector) -> WindowResult:
        """Train one window; see `distkeras_grid.engine.base.Engine`."""
        return self._engine().run(before, blocks, after)

    def set_learning_rate(self, value: float) -> None:
        """Set the optimizer's learning rate from the next window on."""
        self._engine().set_learning_rate(value)

    def apply(self, gradient: Vector, weights: Vector) -> None:
        """Step from `weights`; see `distkeras_grid.engine.base.Engine`."""
        self._engine().apply(gradient, weights)

    def state_vectors(self) -> list[Vector]:
        """Return the state of the optimizer of `apply`."""
        return self._engine().state_vectors()

    def take_over(self, parts: Sequence[Vector]) -> None:
        """Go on with another worker's optimizer state."""
        self._engine().take_over(parts)

    def begin_after(self, steps: int) -> None:
        """Begin with a new optimizer, whose schedule goes on after `steps` batches."""
        self.tensors = self._shared.initial
        self._shared.give_to(self)
        engine = self._shared.engine
        if self._seed is not None:
            engine.set_seed(self._seed)
        engine.begin_after(steps)

    def state(self) -> State:
        """Return optimizer state and random generators."""
        held = self._shared.held() if self._shared.owner is self else self.tensors
        return {str(number): np.array(tensor) for number, tensor in enumerate(held)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        import tensorflow as tf

        self.tensors = [tf.constant(state[str(number)]) for number in range(len(state))]
        self._shared.give_to(self)

    def _engine(self) -> TensorFlowEngine:
        if self._shared.owner is not self:
            self._shared.give_to(self)
        return self._shared.engine


class KerasStepper:
    """A model's own optimizer, which steps by the mean gradients of the rounds.

    Parameters
    ----------
    engine : TensorFlowEngine
        That of the learners; its windows make no steps.
    """

    def __init__(self, engine: TensorFlowEngine) -> None:
        self._engine = engine

    def step(self, gradient: Vector, weights: Vector) -> None:
        """Move `weights`; see `distkeras_grid.simulation.learners.Stepper`."""
        self._engine.apply(gradient, weights)

    def state(self) -> State:
        """Return the slots, as vectors."""
        return {str(n): part for n, part in enumerate(self._engine.state_vectors())}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from those slots."""
        self._engine.take_over([state[str(number)] for number in range(len(state))])


def keras_learners(
    engine: TensorFlowEngine, workers: int, seed: int | None = None
) -> list[KerasLearner]:
    """Return one learner for each worker, all on one engine.

    Memory: that of the engine, and for each worker its optimizer's variables beside the vectors
    of `distkeras_grid.simulation.worker.SimulatedWorker`.

    Parameters
    ----------
    engine : TensorFlowEngine
        In the state in which every worker begins.
    workers : int
        Number of workers.
    seed : int, optional
        Of dropout and other random layers, which differ from worker to worker. None keeps the
        model's own generators.

    Returns
    -------
    list of KerasLearner
        As `distkeras_grid.simulation.run.Simulation` takes them.
    """
    shared = _SharedEngine(engine)
    seeds = [None if seed is None else (seed, number) for number in range(workers)]
    return [KerasLearner(shared, own) for own in seeds]

"""The interface of an engine, for the worker and the simulation.

An engine trains one model for one seat. It takes flat weights and mini-batches and returns flat
weights. The optimizer's state and the random generators stay inside. An engine may compute in one
process or in several: the interface mentions no process, device or thread.
`tests.contracts.test_engines` tests the engines of one process, `test_divided_engines` those of
several, and the tests of `model_parallel` compare the latter with the former.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from distkeras_grid.records import WindowResult
from distkeras_grid.rows import RowBlock
from distkeras_grid.weights import StateSection, Vector, WeightLayout

#: An engine's state, under names that only the engine knows, for `Engine.restore`.
State: TypeAlias = Mapping[str, NDArray[Any]]


class Engine(Protocol):
    """The engine of a worker, in a real run and in a simulated one.

    That of a real model is a `distkeras_grid.engine.keras_engine.KerasEngine`, which can do more.
    """

    layout: WeightLayout  # Order and shapes of the variables in the flat vector

    @property
    def step_section(self) -> StateSection:
        """Layout of `step_state`: names, shapes and types."""
        ...

    def weights(self) -> Vector:
        """Return a copy of the model's weights as a flat vector."""
        ...

    def run(self, before: Vector, blocks: Iterable[RowBlock], after: Vector) -> WindowResult:
        """Train one window from the weights `before` and write the new ones into `after`.

        `before, after`: shape ``(layout.size,)``, ``float32``, in separate memory. They are used
        without a copy if they are aligned to 64 bytes (`distkeras_grid.rows.aligned_empty`).
        `before` does not change. `distkeras_grid.rules.LocalSteps` says what `after` receives.
        `blocks`: the mini-batches in order, at least one. Only one block at a time is in memory.
        """
        ...

    def evaluate(self, weights: Vector, blocks: Iterable[RowBlock]) -> dict[str, float]:
        """Return loss and metrics of weights on rows, without a step.

        `weights`: shape ``(layout.size,)``, ``float32``.
        `blocks`: the rows, in batches, at least one.
        """
        ...

    def apply(self, gradient: Vector, weights: Vector) -> None:
        """Take a step from `weights` with a gradient that all workers use.

        `gradient`: ``[mean gradient | statistics]``, shape ``(layout.size,)``, ``float32``. The
        statistics replace those of `weights`.
        `weights`: same shape; gets the result.
        """
        ...

    def step_state(self) -> list[NDArray[Any]]:
        """Return copies of the state of the optimizer that makes the steps of `apply`.

        One for each variable of `step_section`, in its own type: counts are whole numbers.
        """
        ...

    def load_step_state(self, state: Sequence[NDArray[Any]]) -> None:
        """Continue with the state that another worker's `step_state` returned."""
        ...

    def set_schedule_offset(self, steps: int) -> None:
        """Let schedules of the learning rate go on after `steps` batches of earlier attempts.

        Nothing else changes, at whatever time it is called: the optimizer, its count and the random
        generators stay as they are, and `restore` brings back how they were. Where the optimizer's
        state comes with the weights, its count has to fit it, and so grows by `steps`.
        """
        ...

    def set_learning_rate(self, value: float) -> None:
        """Set the optimizer's learning rate from the next window on."""
        ...

    def state(self) -> State:
        """Return copies of everything that windows and steps change, except the weights."""
        ...

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        ...

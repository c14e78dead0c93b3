"""What the worker, the simulation and the measuring of statistics ask of an engine.

An engine trains one model for one seat. It takes flat weights and mini-batches and gives flat
weights back; the optimizer's state and the random generators stay inside. Whether one process or a
group of them computes is the engine's own affair: nothing here tells a process, a device or a
thread. `tests.contracts.test_engines` holds every engine to this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.rows import Block
from distkeras_grid.weights import StateSection, Vector, WeightLayout

#: An engine's state by names of its own, for `Engine.restore`.
State: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class WindowResult:
    """What training on one window brought, beside the weights.

    Parameters
    ----------
    steps, samples : int
        Mini-batches and samples trained.
    loss : float
        Mean loss of the window's samples.
    metrics : dict of str to float
        The compiled metrics over the window's samples.
    """

    steps: int
    samples: int
    loss: float
    metrics: dict[str, float]


class Engine(Protocol):
    """What a worker's mind drives, in a real run and in a simulated one.

    Attributes
    ----------
    layout : WeightLayout
        Order and shapes of the variables in the flat vector.
    """

    layout: WeightLayout

    @property
    def step_section(self) -> StateSection:
        """What `step_state` holds: names, shapes and types."""
        ...

    def weights(self) -> Vector:
        """Return a copy of the model's weights as a flat vector."""
        ...

    def run(self, before: Vector, blocks: Iterable[Block], after: Vector) -> WindowResult:
        """Train one window from the weights `before` and write the new ones into `after`.

        Parameters
        ----------
        before, after : ndarray
            Shape ``(layout.size,)``, ``float32``; distinct memory, aligned to 64 bytes if they are
            to be used without a copy (`distkeras_grid.rows.aligned_empty`). `before` stays as it
            is. What `after` holds is said by `distkeras_grid.rules.LocalSteps`.
        blocks : iterable of Block
            The mini-batches in order, at least one; one block at a time is held.

        Returns
        -------
        WindowResult
            Loss and metrics are means over the samples of all blocks.
        """
        ...

    def apply(self, gradient: Vector, weights: Vector) -> None:
        """Step from `weights` by a gradient that all workers agree on.

        Parameters
        ----------
        gradient : ndarray
            ``[mean gradient | statistics]``, shape ``(layout.size,)``, ``float32``. The statistics
            replace those of `weights`.
        weights : ndarray
            Same shape; gets the result.
        """
        ...

    def step_state(self) -> list[NDArray[Any]]:
        """Return copies of the state of the optimizer that makes the steps of `apply`.

        One for each variable of `step_section`, in its own type: counts are whole numbers.
        """
        ...

    def take_over(self, state: Sequence[NDArray[Any]]) -> None:
        """Go on with what another worker's `step_state` returned."""
        ...

    def begin_after(self, steps: int) -> None:
        """Begin as an attempt that comes after `steps` batches of the ones before.

        Schedules of the learning rate go on there. The optimizer itself begins as new, its count
        of steps included, unless its state comes with the weights. Called once, before the first
        window.
        """
        ...

    def set_learning_rate(self, value: float) -> None:
        """Set the optimizer's learning rate from the next window on.

        Raises
        ------
        ConfigurationError
            If the optimizer has no single rate that is a number.
        """
        ...

    def state(self) -> State:
        """Return copies of all that windows and steps leave behind beside the weights."""
        ...

    def restore(self, state: State) -> None:
        """Go on from what `state` returned."""
        ...


class ModelEngine(Engine, Protocol):
    """An engine of a real model: what an executor asks beside the training itself."""

    def warm_up(self, block: Block) -> float:
        """Compile what windows of such blocks need, and leave the state as it was.

        Returns
        -------
        float
            How long the block takes once compiled [s].
        """
        ...

    def set_seed(self, seed: Sequence[int]) -> None:
        """Seed the model's random generators (dropout, noise, augmentation).

        Parameters
        ----------
        seed : sequence of int
            Such as (seed of the run, seat): workers must differ, or their dropout masks agree.
        """
        ...

    def fresh_weights(self, seed: Sequence[int]) -> Vector:
        """Return newly drawn initial weights as a flat vector; the model is left alone."""
        ...

    def measure_statistics(
        self, weights: Vector, blocks: Iterable[Block]
    ) -> tuple[int, NDArray[np.float64]]:
        """Find the means and variances that batch normalization sees with these weights.

        Parameters
        ----------
        weights : ndarray
            Shape ``(layout.size,)``, ``float32``.
        blocks : iterable of Block
            The rows, in batches. Nothing makes a step.

        Returns
        -------
        int
            Rows.
        ndarray
            The sum over all rows of the statistics of their batches, as
            `distkeras_grid.engine.keras_model.get_flat_statistics` lays them out.
        """
        ...

    def adopt(self, model: Any) -> None:
        """Take over weights and state of another model of the same architecture and ``compile``.

        Parameters
        ----------
        model : keras.Model
            Compiled.
        """
        ...

    def swap(self, held: Sequence[Any]) -> list[Any]:
        """Put a state in and return the one that was there, both where the engine computes.

        Faster than `state` and `restore`: several simulated workers take turns on one engine.

        Parameters
        ----------
        held : sequence
            What `swap` or `held` returned.
        """
        ...

    def held(self) -> list[Any]:
        """Return a copy of the state, as `swap` takes it."""
        ...

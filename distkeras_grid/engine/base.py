"""What a worker asks of an engine: flat weights and blocks of batches in, flat weights out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from distkeras_grid.rows import Block
from distkeras_grid.weights import Vector, WeightLayout


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
    """Trains one model, window by window; optimizer state and random generators stay inside."""

    layout: WeightLayout

    def weights(self) -> Vector:
        """Return a copy of the model's weights as a flat vector."""
        ...

    def run(self, before: Vector, blocks: Iterable[Block], after: Vector) -> WindowResult:
        """Train one window from the weights `before` and write the new ones into `after`.

        Parameters
        ----------
        before, after : ndarray
            Shape ``(layout.size,)``, ``float32``; distinct memory, aligned to 64 bytes if they are
            to be used without a copy (`aligned_empty`).
        blocks : iterable of Block
            The mini-batches in order.
        """
        ...

    def set_learning_rate(self, value: float) -> None:
        """Set the optimizer's learning rate from the next window on."""
        ...

    def begin_after(self, steps: int) -> None:
        """Begin as an attempt that comes after `steps` batches of the ones before.

        Schedules of the learning rate go on there; the optimizer itself begins as new, unless its
        state comes with the weights.
        """
        ...

    def apply(self, gradient: Vector, weights: Vector) -> None:
        """Step from `weights` by a gradient that all workers agree on; `weights` gets the result.

        Parameters
        ----------
        gradient : ndarray
            ``[mean gradient | statistics]``, shape ``(layout.size,)``, ``float32``. The statistics
            replace those of `weights`.
        weights : ndarray
            Same shape; changes in place.
        """
        ...

    def state_vectors(self) -> list[Vector]:
        """Return the state of the optimizer that makes the steps of `apply`, as vectors."""
        ...

    def take_over(self, parts: Sequence[Vector]) -> None:
        """Go on with the optimizer state that another worker's `state_vectors` told."""
        ...

"""What simulated workers train with; a quadratic loss whose gradients are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.base import State
from distkeras_grid.records import WindowResult
from distkeras_grid.rows import RowBlock
from distkeras_grid.rules import LocalSteps
from distkeras_grid.weights import StateSection, Variable, Vector, WeightLayout


class QuadraticLearner:
    """Descends ``f(x) = mean_j (x - a_j)^T H (x - a_j) / 2``: each row of the data is an ``a_j``.

    If all rows of a worker are the same ``a_i``, its loss is ``(x - a_i)^T H (x - a_i) / 2``. With
    dyadic numbers all results are exact.

    `start`: initial weights, shape ``(size,)``, ``float32`` or ``float64``, the type of all
    results.
    """

    def __init__(
        self,
        start: NDArray[Any],
        curvature: NDArray[Any] | float,
        learning_rate: float,
        momentum: float = 0.0,
        local_steps: LocalSteps = LocalSteps.OPTIMIZER,
    ) -> None:
        self.layout = WeightLayout((Variable("x", (start.size,)),))
        self._start = start.copy()
        self._curvature = np.asarray(curvature, start.dtype)
        self._rate = start.dtype.type(learning_rate)
        self._momentum = start.dtype.type(momentum)
        self._local_steps = local_steps
        self._velocity = np.zeros_like(start)

    def weights(self) -> Vector:
        return self._start.copy()

    def run(self, before: Vector, blocks: Iterable[RowBlock], after: Vector) -> WindowResult:
        x, total = before.copy(), np.zeros_like(before)
        losses, steps, samples = 0.0, 0, 0
        for block in blocks:
            steps, samples = steps + block.steps, samples + block.samples
            for number, targets in enumerate(block.x[0]):
                weight = None if block.weight is None else block.weight[number]
                loss, gradient = self._gradient(x, targets, weight)
                losses += len(targets) * loss
                if self._local_steps is LocalSteps.NONE:
                    np.add(total, len(targets) * gradient, out=total)
                else:
                    np.add(total, gradient, out=total)
                    self.step(gradient, x)
        if self._local_steps is LocalSteps.NONE:
            np.divide(total, samples, out=total)
        gradients = self._local_steps in (LocalSteps.GRADIENT, LocalSteps.NONE)
        np.copyto(after, total if gradients else x)
        return WindowResult(steps, samples, losses / samples, {})

    def evaluate(self, weights: Vector, blocks: Iterable[RowBlock]) -> dict[str, float]:
        total = counted = 0.0
        for block in blocks:
            losses = ((weights - block.x[0]) ** 2 * self._curvature).sum(axis=-1) / 2
            weight = np.ones_like(losses) if block.weight is None else block.weight
            # Batch by batch, so that the sum does not depend on how batches are put into blocks.
            for values, factors in zip(losses, weight, strict=True):
                total += float((values * factors).sum())
                counted += float(factors.sum())
        return {"loss": total / counted}

    def step(self, gradient: Vector, weights: Vector) -> None:
        np.multiply(self._velocity, self._momentum, out=self._velocity)
        np.subtract(self._velocity, self._rate * gradient, out=self._velocity)
        np.add(weights, self._velocity, out=weights)

    def set_learning_rate(self, value: float) -> None:
        self._rate = self._start.dtype.type(value)

    def apply(self, gradient: Vector, weights: Vector) -> None:
        self.step(gradient, weights)

    @property
    def step_section(self) -> StateSection:
        """What `step_state` holds: the velocity."""
        return StateSection((Variable("velocity", self._start.shape, self._start.dtype.name),))

    def step_state(self) -> list[NDArray[Any]]:
        return [self._velocity.copy()]

    def load_step_state(self, state: Sequence[NDArray[Any]]) -> None:
        np.copyto(self._velocity, state[0])

    def set_schedule_offset(self, steps: int) -> None:
        """Do nothing: the rate has no schedule."""

    def state(self) -> State:
        return {"velocity": self._velocity.copy(), "rate": np.array(self._rate)}

    def restore(self, state: State) -> None:
        np.copyto(self._velocity, state["velocity"])
        self._rate = self._start.dtype.type(state["rate"])

    def _gradient(
        self, x: Vector, targets: NDArray[Any], weight: NDArray[np.float32] | None
    ) -> tuple[float, Vector]:
        ahead = self._local_steps is LocalSteps.LOOK_AHEAD
        at = x + self._momentum * self._velocity if ahead else x
        distance = at - np.average(targets, axis=0, weights=weight).astype(x.dtype)
        losses = ((at - targets) ** 2 * self._curvature).sum(axis=-1) / 2
        return float(np.average(losses, weights=weight)), self._curvature * distance

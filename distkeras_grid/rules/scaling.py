"""What distinguishes one delta rule from another: a chain of scalings of ``x - x0``.

A rule names its scalings in order, as optax chains transformations. Each is a small value without
state. It acts either on the worker, before the delta is sent, or on the server, in the step that
folds it. If a scaling must remember something between two commits, the server keeps it as vectors,
for each seat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distkeras_grid.rules.base import CommitInfo, Memory
from distkeras_grid.weights import Vector


@dataclass(frozen=True)
class Scaling:
    """One factor of a delta; a scaling of your own overrides one of its methods."""

    #: Vectors that the server keeps for each seat, and hands over as `memory`.
    seat_vectors: ClassVar[int] = 0

    def on_worker(self, delta: Vector, steps: int) -> None:
        """Scale a delta before it is sent.

        `steps`: mini-batches in the window, at least 1.
        """

    def on_server(self, delta: Vector, commit: CommitInfo, center: Vector, memory: Memory) -> None:
        """Scale a delta before it is added.

        `memory`: the same slice of what `save_base` noted. It may be used as scratch space,
        because `save_base` is called again after the fold.
        """

    def save_base(self, center: Vector, memory: Memory) -> None:
        """Note the center that a seat receives, at its start and with each reply."""


@dataclass(frozen=True)
class Constant(Scaling):
    """``s``, on the worker."""

    factor: float  # ``s``

    def on_worker(self, delta: Vector, steps: int) -> None:  # noqa: ARG002
        """Multiply by ``s``."""
        if self.factor != 1.0:
            np.multiply(delta, self.factor, out=delta)


@dataclass(frozen=True)
class PerStep(Scaling):
    """``1 / k``, on the worker: the mean over the window's steps."""

    def on_worker(self, delta: Vector, steps: int) -> None:
        """Divide by ``k``."""
        np.divide(delta, steps, out=delta)


@dataclass(frozen=True)
class DivideByStaleness(Scaling):
    """``1 / (tau + 1)``, on the server, with the staleness ``tau``."""

    def on_server(
        self,
        delta: Vector,
        commit: CommitInfo,
        center: Vector,  # noqa: ARG002
        memory: Memory,  # noqa: ARG002
    ) -> None:
        """Divide by ``tau + 1``."""
        np.divide(delta, commit.staleness + 1, out=delta)


@dataclass(frozen=True)
class PerDistance(Scaling):
    """``1 / (1 + d^2 / gamma)`` for each weight, on the server.

    ``d`` is the distance between the center now and the center that the seat received last.
    """

    seat_vectors: ClassVar[int] = 1
    gamma: float  # Square of the distance at which a commit counts half

    def on_server(
        self,
        delta: Vector,
        commit: CommitInfo,  # noqa: ARG002
        center: Vector,
        memory: Memory,
    ) -> None:
        """Divide by ``1 + d^2 / gamma``."""
        (base,) = memory
        np.subtract(center, base, out=base)
        np.multiply(base, base, out=base)
        np.divide(base, self.gamma, out=base)
        np.add(base, 1, out=base)
        np.divide(delta, base, out=delta)

    def save_base(self, center: Vector, memory: Memory) -> None:
        """Note the center."""
        np.copyto(memory[0], center)

"""Rules that give a late commit less weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distkeras_grid.rules.base import CommitInfo, Memory
from distkeras_grid.rules.downpour import AccumulatedGradientRule, DeltaRule
from distkeras_grid.rules.parameters import check_positive
from distkeras_grid.weights import Vector


@dataclass(frozen=True)
class DynamicRateRule(DeltaRule):
    """Dynamic learning rate: ``c <- c + (x - x0) / (tau + 1)``, with the staleness ``tau``.

    Jiang, Cui, Zhang and Yu, "Heterogeneity-aware Distributed Parameter Servers", SIGMOD 2017, in
    the form of dist-keras' DynSGD: ``tau`` counts the commits of others since the worker's last
    reply, and no earlier update is revised. With n workers at one speed each commit has the
    weight 1/n.
    """

    name: ClassVar[str] = "dynamic_rate"

    def gain(self, reached: float, steps: int, workers: int) -> float:  # noqa: ARG002
        """Return what is left where every other worker commits once between two commits."""
        return reached / workers

    def propose(self, before: Vector, after: Vector, steps: int, out: Vector) -> None:  # noqa: ARG002
        """Send ``x - x0``."""
        np.subtract(after, before, out=out)

    def fold(self, center: Vector, payload: Vector, commit: CommitInfo, memory: Memory) -> None:
        """Add the share that the staleness leaves."""
        np.divide(payload, commit.staleness + 1, out=payload)
        super().fold(center, payload, commit, memory)


@dataclass(frozen=True)
class DistanceRule(AccumulatedGradientRule):
    """Accumulated gradients by the distance: ``c <- c + ((x - x0) / k) / (1 + d^2 / gamma)``.

    ``d = c - b``, weight by weight, with ``b`` the center that the worker's window started from;
    the server remembers it, one vector for each worker. Hermans, "On Scalable Deep Learning and
    Parallelizing Gradient Descent", master thesis, Maastricht 2017, chapter 5 (ADAG there,
    ``Experimental`` in dist-keras). Where nobody else has moved a weight, nothing is taken off.

    Parameters
    ----------
    gamma : float
        Square of the distance at which a commit counts half; the thesis recommends 1e-4.
    """

    name: ClassVar[str] = "distance"
    seat_vectors: ClassVar[int] = 1
    gamma: float = 1e-4

    def __post_init__(self) -> None:
        check_positive("gamma", self.gamma)

    def greet(self, center: Vector, memory: Memory) -> None:
        """Remember where the next window starts."""
        np.copyto(memory[0], center)

    def fold(self, center: Vector, payload: Vector, commit: CommitInfo, memory: Memory) -> None:
        """Add what the distance leaves."""
        base = memory[0]
        np.subtract(center, base, out=base)
        np.multiply(base, base, out=base)
        np.divide(base, self.gamma, out=base)
        np.add(base, 1, out=base)
        np.divide(payload, base, out=payload)
        super().fold(center, payload, commit, memory)
        self.greet(center, memory)

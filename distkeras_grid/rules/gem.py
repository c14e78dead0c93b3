"""Gradient energy matching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distkeras_grid.rules.base import (
    AsynchronousRule,
    CommitInfo,
    CommitKind,
    Memory,
    RuleProperties,
)
from distkeras_grid.rules.parameters import check_positive
from distkeras_grid.weights import Vector


@dataclass(frozen=True)
class EnergyMatchingRule(AsynchronousRule):
    """Gradient energy matching (GEM).

    Hermans and Louppe, "Gradient Energy Matching for Distributed Asynchronous Gradient Descent",
    2018, algorithm 1. With the window's step ``d = x - x0`` of plain SGD, per weight: ``m <- mu m
    + d``, ``c <- c + p d`` with ``p = (kappa |m| - |c - s|) / (|d| + epsilon)``, and ``s <- c``.
    All workers together thus move the center as far as one worker's SGD with momentum would.

    The paper's workers pull the center before they commit. Here the server keeps ``m`` and ``s``
    of each worker and computes ``p`` in the step that folds. A window then takes one exchange, and
    no other worker moves the center in between.
    """

    name: ClassVar[str] = "energy_matching"
    traits: ClassVar[RuleProperties] = RuleProperties(
        sends=CommitKind.CHANGES, plain_sgd=True, seat_vectors=2
    )
    momentum: float = 0.9  # ``mu``, at least 0 and below 1; 0.9 in the paper
    kappa: float = 1.0  # Energy of the proxy; the authors call 2 a good value, and 4 diverges
    # Upper limit of ``p``, whose lower limit is 0; 5 in the authors' code
    largest_scale: float = 5.0
    epsilon: float = 1e-12  # 1e-12 in the authors' code
    # Whether the shift ``c - s`` leaves out the worker's own last commit. The paper counts it, so
    # that a single worker moves by half of its momentum on average.
    exclude_own_commit: bool = False

    def __post_init__(self) -> None:
        check_positive("momentum", self.momentum, below=1, zero=True)
        check_positive("kappa", self.kappa)
        check_positive("largest_scale", self.largest_scale)
        check_positive("epsilon", self.epsilon)

    def compute_commit(self, before: Vector, after: Vector, steps: int, out: Vector) -> None:  # noqa: ARG002
        """Send ``d``."""
        np.subtract(after, before, out=out)

    def on_join(self, center: Vector, memory: Memory) -> None:
        """Remember where the next window starts; the momentum stays."""
        np.copyto(memory[1], center)

    def fold(self, center: Vector, payload: Vector, commit: CommitInfo, memory: Memory) -> None:  # noqa: ARG002
        """Scale the step so that the energies match, and add it."""
        momentum, start = memory
        np.multiply(momentum, self.momentum, out=momentum)
        np.add(momentum, payload, out=momentum)
        scale = self.kappa * np.abs(momentum) - np.abs(center - start)
        np.divide(scale, np.abs(payload) + self.epsilon, out=scale)
        np.clip(scale, 0, self.largest_scale, out=scale)
        if not self.exclude_own_commit:
            np.copyto(start, center)
        np.multiply(payload, scale, out=payload)
        np.add(center, payload, out=center)
        np.copyto(payload, center)
        if self.exclude_own_commit:
            np.copyto(start, center)

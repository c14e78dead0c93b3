"""Downpour SGD with Adagrad on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distkeras_grid.rules.base import (
    AsynchronousRule,
    CommitInfo,
    CommitKind,
    LocalSteps,
    Memory,
    RuleProperties,
)
from distkeras_grid.rules.parameters import check_positive
from distkeras_grid.weights import Vector


@dataclass(frozen=True)
class AdagradRule(AsynchronousRule):
    """Adagrad on the server: ``G <- G + A^2``, ``c <- c - rate A / sqrt(G + epsilon)``.

    ``A`` is the sum of a window's gradients, ``G`` one vector beside the center. Dean et al.,
    "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1. One worker with a window of
    one batch is Keras' Adagrad: `epsilon` is inside the root, as in Keras.
    """

    name: ClassVar[str] = "adagrad"
    traits: ClassVar[RuleProperties] = RuleProperties(
        local_steps=LocalSteps.GRADIENT, sends=CommitKind.CHANGES, plain_sgd=True, shared_vectors=1
    )
    rate: float  # The server's learning rate
    initial: float = 0.1  # First value of ``G``; Keras starts at 0.1, the paper at 0
    epsilon: float = 1e-7  # 1e-7 in Keras

    def __post_init__(self) -> None:
        check_positive("rate", self.rate)
        check_positive("initial", self.initial, zero=True)
        check_positive("epsilon", self.epsilon, zero=True)

    def fold(self, center: Vector, payload: Vector, commit: CommitInfo, memory: Memory) -> None:  # noqa: ARG002
        """Step against the gradients; reply with the new center."""
        squares = memory[0]
        np.add(squares, payload * payload, out=squares)
        # Where all gradients have been 0, 0 / 0 must give no step.
        root = np.sqrt(squares + (self.initial + self.epsilon))
        np.divide(payload, root, out=payload, where=root > 0)
        np.multiply(payload, self.rate, out=payload)
        np.subtract(center, payload, out=center)
        np.copyto(payload, center)

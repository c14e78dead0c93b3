"""Elastic averaging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules.base import (
    AsynchronousRule,
    CommitInfo,
    LocalSteps,
    Memory,
    Rule,
    RuleProperties,
    SynchronousRule,
)
from distkeras_grid.rules.parameters import check_positive
from distkeras_grid.weights import Vector


@dataclass(frozen=True)
class _Elastic(Rule):
    """What workers do: ``x <- x - e``; ``alpha`` lies between 0 and 1."""

    traits: ClassVar[RuleProperties] = RuleProperties(keeps_weights=True)
    alpha: float

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigurationError(f"alpha must lie between 0 and 1. Received: {self.alpha!r}.")

    def repeat(self, center: Vector, payload: Vector) -> None:  # noqa: ARG002
        """Reply with ``e = 0``: the lost ``e`` is not known any more; the worker keeps ``x``."""
        payload.fill(0.0)

    def apply_reply(self, after: Vector, reply: Vector, out: Vector) -> None:
        """Move toward the center: ``x - e``."""
        np.subtract(after, reply, out=out)


@dataclass(frozen=True)
class ElasticRule(_Elastic, AsynchronousRule):
    """Asynchronous EASGD: ``e = alpha (x - c)``, ``x <- x - e``, ``c <- c + e``.

    Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD", NIPS 2015,
    algorithm 1. The worker sends ``x``, and the server computes ``e`` and folds it in one step. If
    the worker first read ``c`` and later sent ``e``, m simultaneous exchanges would act like one
    with ``m alpha``, which diverges for many workers and small windows. The sum of all ``x`` and
    ``c`` does not change in an exchange.
    """

    name: ClassVar[str] = "elastic"

    def fold(self, center: Vector, payload: Vector, commit: CommitInfo, memory: Memory) -> None:  # noqa: ARG002
        """Move the center toward ``x``; reply with ``e``."""
        np.subtract(payload, center, out=payload)
        np.multiply(payload, self.alpha, out=payload)
        np.add(center, payload, out=center)


@dataclass(frozen=True)
class ElasticMomentumRule(ElasticRule):
    """Asynchronous EAMSGD: elastic averaging of workers with Nesterov's momentum.

    Zhang, Choromanska and LeCun, NIPS 2015, algorithm 2: ``v <- mu v - eta g(x + mu v)``, ``x <- x
    + v``. The elastic exchange moves only ``x``; ``v`` stays with the worker.
    """

    name: ClassVar[str] = "elastic_momentum"
    traits: ClassVar[RuleProperties] = RuleProperties(
        local_steps=LocalSteps.LOOK_AHEAD, plain_sgd=True, keeps_weights=True
    )
    momentum: float = 0.9  # ``mu``, at least 0 and below 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("momentum", self.momentum, below=1, zero=True)

    @property
    def local_momentum(self) -> float:
        """``mu``."""
        return self.momentum


@dataclass(frozen=True)
class ElasticRoundRule(_Elastic, SynchronousRule):
    """Synchronous EASGD: ``e_i = alpha (x_i - c)`` for all at once, ``c <- c + sum_i e_i``.

    Zhang, Choromanska and LeCun, NIPS 2015, equations 2 and 3. With ``alpha = 1 / n`` the center
    becomes the mean of the workers.
    """

    name: ClassVar[str] = "elastic_round"

    def aggregate(
        self,
        center: Vector,
        payloads: Sequence[Vector],
        commits: Sequence[CommitInfo],  # noqa: ARG002
    ) -> None:
        """Move the center by the sum of all ``e_i``; reply to each worker with its own."""
        for payload in payloads:
            np.subtract(payload, center, out=payload)
            np.multiply(payload, self.alpha, out=payload)
        for payload in payloads:
            np.add(center, payload, out=center)

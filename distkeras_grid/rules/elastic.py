"""Elastic averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules.base import AsynchronousRule, CommitInfo
from distkeras_grid.weights import Vector


@dataclass(frozen=True)
class ElasticRule(AsynchronousRule):
    """Asynchronous EASGD: ``e = alpha (x - c)``, ``x <- x - e``, ``c <- c + e``.

    Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD", NIPS 2015,
    algorithm 1. The worker sends ``x`` and the server computes ``e`` in the same step that folds
    it: were ``c`` read first and ``e`` sent later, m exchanges at a time would act like one with
    ``m alpha``, which diverges for many workers and small windows. The sum of all ``x`` and ``c``
    does not change in an exchange.

    Parameters
    ----------
    alpha : float
        Between 0 and 1; the authors' code uses ``0.9 / n``.
    """

    name: ClassVar[str] = "elastic"
    alpha: float

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigurationError(f"alpha must lie between 0 and 1, {self.alpha!r} came in.")

    def propose(self, before: Vector, after: Vector, steps: int, out: Vector) -> None:  # noqa: ARG002
        """Send ``x``."""
        np.copyto(out, after)

    def fold(self, center: Vector, payload: Vector, commit: CommitInfo) -> None:  # noqa: ARG002
        """Move the center towards ``x``; reply with ``e``."""
        np.subtract(payload, center, out=payload)
        np.multiply(payload, self.alpha, out=payload)
        np.add(center, payload, out=center)

    def repeat(self, center: Vector, payload: Vector) -> None:  # noqa: ARG002
        """Reply with ``e = 0``: the lost ``e`` cannot be told again, the worker keeps its ``x``."""
        payload.fill(0.0)

    def adopt(self, after: Vector, reply: Vector, out: Vector) -> None:
        """Move towards the center: ``x - e``."""
        np.subtract(after, reply, out=out)

"""Synchronous rules: all workers meet, and the center is their mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distkeras_grid.rules.base import CommitInfo, SynchronousRule
from distkeras_grid.weights import Vector


def weighted_mean(payloads: Sequence[Vector], samples: Sequence[int], out: Vector) -> None:
    """Fill `out` with the mean of vectors, weighted by samples.

    It is computed as ``x_1 + sum_i m_i (x_i - x_1) / sum m``: identical vectors have
    themselves as their mean, bit for bit.

    Parameters
    ----------
    payloads : sequence of ndarray
        At least one vector, ``float32``; all but the first are used as scratch space.
    samples : sequence of int
        One positive weight for each.
    out : ndarray
        Same shape; none of the payloads.

    Examples
    --------
    >>> out = np.empty(1, np.float32)
    >>> weighted_mean([np.array([1], np.float32), np.array([5], np.float32)], [3, 1], out)
    >>> out.tolist()
    [2.0]
    """
    first = payloads[0]
    np.copyto(out, first)
    total = sum(samples)
    for payload, weight in zip(payloads[1:], samples[1:], strict=True):
        np.subtract(payload, first, out=payload)
        np.multiply(payload, weight / total, out=payload)
        np.add(out, payload, out=out)


@dataclass(frozen=True)
class AveragingRule(SynchronousRule):
    """Parameter averaging: ``c <- sum_i m_i x_i / sum_i m_i``, with ``m_i`` samples of worker i.

    Zinkevich et al., "Parallelized Stochastic Gradient Descent", NIPS 2010, algorithm 3, repeated
    every window (local SGD: Stich, ICLR 2019). Workers send ``x`` and not ``x - x0``, for only
    then the mean of identical replicas is the replica bit for bit.
    """

    name: ClassVar[str] = "averaging"

    def propose(self, before: Vector, after: Vector, steps: int, out: Vector) -> None:  # noqa: ARG002
        """Send ``x``."""
        np.copyto(out, after)

    def combine(
        self, center: Vector, payloads: Sequence[Vector], commits: Sequence[CommitInfo]
    ) -> None:
        """Replace the center by the mean; it is the reply to all."""
        weighted_mean(payloads, [commit.samples for commit in commits], center)
        for payload in payloads:
            np.copyto(payload, center)

    def adopt(self, after: Vector, reply: Vector, out: Vector) -> None:  # noqa: ARG002
        """Take the center over."""
        np.copyto(out, reply)

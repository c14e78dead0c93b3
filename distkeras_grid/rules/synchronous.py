"""Synchronous rules: workers commit in rounds, and the server takes the mean of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distkeras_grid.rules.base import (
    CommitInfo,
    CommitKind,
    LocalSteps,
    ReplyKind,
    RuleProperties,
    SynchronousRule,
)
from distkeras_grid.rules.finite_checks import is_small
from distkeras_grid.weights import Vector


def weighted_mean(payloads: Sequence[Vector], samples: Sequence[int], out: Vector) -> None:
    """Fill `out` with the mean of vectors, weighted by samples.

    It is computed as ``x_1 + sum_i m_i (x_i - x_1) / sum m``, so the mean of identical vectors is
    the same vector, bit for bit. Where a difference could overflow, ``float64`` is used, so the
    mean of finite numbers is finite.

    `payloads`: at least one vector, ``float32``; all but the first are used as scratch space.
    `out`: same shape; none of the payloads.

    Examples
    --------
    >>> out = np.empty(1, np.float32)
    >>> weighted_mean([np.array([1], np.float32), np.array([5], np.float32)], [3, 1], out)
    >>> out.tolist()
    [2.0]
    """
    first, total = payloads[0], sum(samples)
    if not all(map(is_small, payloads)):
        wide = first.astype(np.float64)
        mean = wide.copy()
        for payload, weight in zip(payloads[1:], samples[1:], strict=True):
            mean += (payload - wide) * (weight / total)
        np.copyto(out, mean, casting="same_kind")
        return
    np.copyto(out, first)
    for payload, weight in zip(payloads[1:], samples[1:], strict=True):
        np.subtract(payload, first, out=payload)
        np.multiply(payload, weight / total, out=payload)
        np.add(out, payload, out=out)


def average_round(
    center: Vector, payloads: Sequence[Vector], commits: Sequence[CommitInfo]
) -> None:
    """Replace the center by the mean over a round, weighted by samples; it is the reply to all."""
    weighted_mean(payloads, [commit.samples for commit in commits], center)
    for payload in payloads:
        np.copyto(payload, center)


@dataclass(frozen=True)
class AveragingRule(SynchronousRule):
    """Parameter averaging: ``c <- sum_i m_i x_i / sum_i m_i``, with ``m_i`` samples of worker i.

    Zinkevich et al., "Parallelized Stochastic Gradient Descent", NIPS 2010, algorithm 3, repeated
    every window (local SGD: Stich, ICLR 2019). Workers send ``x`` and not ``x - x0``, because only
    then is the mean of identical replicas equal to the replica, bit for bit.
    """

    name: ClassVar[str] = "averaging"

    def aggregate(
        self, center: Vector, payloads: Sequence[Vector], commits: Sequence[CommitInfo]
    ) -> None:
        """Replace the center by the mean; it is the reply to all."""
        average_round(center, payloads, commits)


@dataclass(frozen=True)
class MeanGradientRule(SynchronousRule):
    """Synchronous SGD: every worker steps by the mean gradient ``sum_i m_i g_i / sum_i m_i``.

    Chen et al., "Revisiting Distributed Synchronous SGD", 2016, without an optimizer on the server.
    All workers apply the same optimizer to the same gradient, so their weights and their optimizer
    states stay equal. A window of k batches is one step with the mean gradient of all their rows.
    """

    name: ClassVar[str] = "mean_gradient"
    traits: ClassVar[RuleProperties] = RuleProperties(
        local_steps=LocalSteps.NONE, sends=CommitKind.SUMMANDS, reply=ReplyKind.STEP
    )

    def aggregate(
        self,
        center: Vector,  # noqa: ARG002
        payloads: Sequence[Vector],
        commits: Sequence[CommitInfo],
    ) -> None:
        """Turn all commits into their mean; the center stays until a worker sends it."""
        mean = np.empty_like(payloads[0])
        weighted_mean(payloads, [commit.samples for commit in commits], mean)
        for payload in payloads:
            np.copyto(payload, mean)

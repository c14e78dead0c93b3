"""The delta rules: every commit is a scaled ``x - x0`` that is added to the center.

They differ only in their scalings:

==================== ========================= ===========================================
rule                 scalings                  ``c <- c + ...``
==================== ========================= ===========================================
``downpour``         `Constant`                ``s (x - x0)``
``accumulated_...``  `PerStep`                 ``(x - x0) / k``
``dynamic_rate``     `DivideByStaleness`       ``(x - x0) / (tau + 1)``
``distance``         `PerStep`, `PerDistance`  ``((x - x0) / k) / (1 + d^2 / gamma)``
==================== ========================= ===========================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from distkeras_grid.rules.scaling import Constant, DivideByStaleness, PerDistance, PerStep, Scaling
from distkeras_grid.weights import Vector


@dataclass(frozen=True)
class DeltaRule(AsynchronousRule):
    """``c <- c + s (x - x0)``; the reply is the new center, and the worker takes it over.

    A rule of your own defines `scalings`, and states in `traits` how many seat vectors they need.
    """

    traits: ClassVar[RuleProperties] = RuleProperties(sends=CommitKind.SUMMANDS)

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """The factors of a delta, in the order in which they are applied."""
        return ()

    def compute_commit(self, before: Vector, after: Vector, steps: int, out: Vector) -> None:
        """Send ``x - x0``, scaled."""
        np.subtract(after, before, out=out)
        for scaling in self.scalings:
            scaling.on_worker(out, steps)

    def on_join(self, center: Vector, memory: Memory) -> None:
        """Remember where the next window starts, for scalings that ask for it."""
        for scaling, state in self._with_memory(memory):
            scaling.save_base(center, state)

    def fold(self, center: Vector, payload: Vector, commit: CommitInfo, memory: Memory) -> None:
        """Scale the commit and add it; reply with the new center."""
        scalings = list(self._with_memory(memory))
        for scaling, state in scalings:
            scaling.on_server(payload, commit, center, state)
        np.add(center, payload, out=center)
        np.copyto(payload, center)
        for scaling, state in scalings:
            scaling.save_base(center, state)

    def _with_memory(self, memory: Memory) -> Iterator[tuple[Scaling, Memory]]:
        start = 0
        for scaling in self.scalings:
            yield scaling, memory[start : start + scaling.seat_vectors]
            start += scaling.seat_vectors


@dataclass(frozen=True)
class DownpourRule(DeltaRule):
    """Downpour SGD: ``c <- c + s (x - x0)``.

    Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1, in the form that
    dist-keras gave it: the accumulated gradient is the difference of the weights, so any local
    optimizer may produce it, and push and fetch share one window.
    """

    name: ClassVar[str] = "downpour"
    commit_scale: float = 1.0  # ``s``; 1 is the paper's sum, ``1/n`` the asynchronous mean

    def __post_init__(self) -> None:
        check_positive("commit_scale", self.commit_scale)

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """``s``."""
        return (Constant(self.commit_scale),)


@dataclass(frozen=True)
class AccumulatedGradientRule(DeltaRule):
    """Accumulated gradient normalization: ``c <- c + (x - x0) / k``.

    Hermans, Spanakis and Moeckel, "Accumulated Gradient Normalization", ACML 2017, algorithm 1;
    dist-keras calls it ADAG. A partial window is divided by its own number of steps. With one
    worker this is Lookahead (Zhang et al., 2019) with step size ``1/k``.
    """

    name: ClassVar[str] = "accumulated_gradient"

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """``1 / k``."""
        return (PerStep(),)


@dataclass(frozen=True)
class DynamicRateRule(DeltaRule):
    """Dynamic learning rate: ``c <- c + (x - x0) / (tau + 1)``, with the staleness ``tau``.

    Jiang, Cui, Zhang and Yu, "Heterogeneity-aware Distributed Parameter Servers", SIGMOD 2017, in
    the form of dist-keras' DynSGD: ``tau`` counts the commits of other workers since the worker's
    last reply, and no earlier update is revised. If n workers are equally fast, each commit has
    the weight 1/n.
    """

    name: ClassVar[str] = "dynamic_rate"

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """``1 / (tau + 1)``."""
        return (DivideByStaleness(),)


@dataclass(frozen=True)
class DistanceRule(DeltaRule):
    """Accumulated gradients by the distance: ``c <- c + ((x - x0) / k) / (1 + d^2 / gamma)``.

    ``d = c - b``, weight by weight. ``b`` is the center that the worker's window started from; the
    server keeps it, one vector for each worker. A weight that no other worker has moved is not
    scaled down. Hermans, "On Scalable Deep Learning and Parallelizing Gradient Descent", master
    thesis, Maastricht 2017, chapter 5 (called ADAG there, ``Experimental`` in dist-keras).
    """

    name: ClassVar[str] = "distance"
    traits: ClassVar[RuleProperties] = replace(DeltaRule.traits, seat_vectors=1)
    # Square of the distance at which a commit counts half; the thesis recommends 1e-4
    gamma: float = 1e-4

    def __post_init__(self) -> None:
        check_positive("gamma", self.gamma)

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """``1 / k``, then ``1 / (1 + d^2 / gamma)``."""
        return PerStep(), PerDistance(self.gamma)

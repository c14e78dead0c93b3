"""The delta rules: every commit is a scaled ``x - x0`` that is added to the center.

==================== ===========================================
rule                 ``c <- c + ...``
==================== ===========================================
``downpour``         ``s (x - x0)``
``accumulated_...``  ``(x - x0) / k``
``dynamic_rate``     ``(x - x0) / (tau + 1)``
``distance``         ``((x - x0) / k) / (1 + d^2 / gamma)``
==================== ===========================================
"""

from __future__ import annotations

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
from distkeras_grid.weights import Vector


@dataclass(frozen=True)
class DeltaRule(AsynchronousRule):
    """``c <- c + s (x - x0)``; the reply is the new center, and the worker takes it over.

    A rule of your own scales the delta where it knows the factor: on the worker or on the server.
    """

    traits: ClassVar[RuleProperties] = RuleProperties(sends=CommitKind.SUMMANDS)

    def scale_on_worker(self, delta: Vector, steps: int) -> None:
        """Scale a whole delta of so many mini-batches, before it is compressed and sent."""

    def scale_on_server(
        self, delta: Vector, commit: CommitInfo, center: Vector, memory: Memory
    ) -> None:
        """Scale a delta before it is added to the center.

        `memory`: may be used as scratch space if `on_join` fills it anew.
        """

    def compute_commit(self, before: Vector, after: Vector, steps: int, out: Vector) -> None:
        """Send ``x - x0``, scaled."""
        np.subtract(after, before, out=out)
        self.scale_on_worker(out, steps)

    def fold(self, center: Vector, payload: Vector, commit: CommitInfo, memory: Memory) -> None:
        """Scale the commit and add it; reply with the new center."""
        self.scale_on_server(payload, commit, center, memory)
        np.add(center, payload, out=center)
        np.copyto(payload, center)
        # The next window starts from the reply.
        self.on_join(center, memory)


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

    def scale_on_worker(self, delta: Vector, steps: int) -> None:  # noqa: ARG002
        """Multiply by ``s``."""
        if self.commit_scale != 1.0:
            np.multiply(delta, self.commit_scale, out=delta)


@dataclass(frozen=True)
class AccumulatedGradientRule(DeltaRule):
    """Accumulated gradient normalization: ``c <- c + (x - x0) / k``.

    Hermans, Spanakis and Moeckel, "Accumulated Gradient Normalization", ACML 2017, algorithm 1;
    dist-keras calls it ADAG. A partial window is divided by its own number of steps. With one
    worker this is Lookahead (Zhang et al., 2019) with step size ``1/k``.
    """

    name: ClassVar[str] = "accumulated_gradient"

    def scale_on_worker(self, delta: Vector, steps: int) -> None:
        """Divide by ``k``."""
        np.divide(delta, steps, out=delta)


@dataclass(frozen=True)
class DynamicRateRule(DeltaRule):
    """Dynamic learning rate: ``c <- c + (x - x0) / (tau + 1)``, with the staleness ``tau``.

    Jiang, Cui, Zhang and Yu, "Heterogeneity-aware Distributed Parameter Servers", SIGMOD 2017, in
    the form of dist-keras' DynSGD: ``tau`` counts the commits of other workers since the worker's
    last reply, and no earlier update is revised. If n workers are equally fast, each commit has
    the weight 1/n.
    """

    name: ClassVar[str] = "dynamic_rate"

    def scale_on_server(
        self,
        delta: Vector,
        commit: CommitInfo,
        center: Vector,  # noqa: ARG002
        memory: Memory,  # noqa: ARG002
    ) -> None:
        """Divide by ``tau + 1``."""
        np.divide(delta, commit.staleness + 1, out=delta)


@dataclass(frozen=True)
class DistanceRule(AccumulatedGradientRule):
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

    def on_join(self, center: Vector, memory: Memory) -> None:
        """Note ``b``."""
        np.copyto(memory[0], center)

    def scale_on_server(
        self,
        delta: Vector,
        commit: CommitInfo,  # noqa: ARG002
        center: Vector,
        memory: Memory,
    ) -> None:
        """Divide by ``1 + d^2 / gamma``; ``b`` is noted anew after the fold."""
        (base,) = memory
        np.subtract(center, base, out=base)
        np.multiply(base, base, out=base)
        np.divide(base, self.gamma, out=base)
        np.add(base, 1, out=base)
        np.divide(delta, base, out=delta)

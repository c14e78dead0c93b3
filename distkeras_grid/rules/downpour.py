"""The delta rules: every commit is a scaled ``x - x0`` that is added to the center."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distkeras_grid.rules.base import AsynchronousRule, CommitInfo, Memory
from distkeras_grid.rules.parameters import check_positive
from distkeras_grid.weights import Vector


@dataclass(frozen=True)
class DeltaRule(AsynchronousRule):
    """``c <- c + commit``; the reply is the new center, and the worker takes it over."""

    sends_changes: ClassVar[bool] = True
    adds_commits: ClassVar[bool] = True

    def fold(self, center: Vector, payload: Vector, commit: CommitInfo, memory: Memory) -> None:  # noqa: ARG002
        """Add the commit; reply with the new center."""
        np.add(center, payload, out=center)
        np.copyto(payload, center)

    def adopt(self, after: Vector, reply: Vector, out: Vector) -> None:  # noqa: ARG002
        """Take the center over."""
        np.copyto(out, reply)


@dataclass(frozen=True)
class DownpourRule(DeltaRule):
    """Downpour SGD: ``c <- c + s (x - x0)``.

    Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1, in the form that
    dist-keras gave it: the accumulated gradient is the difference of the weights, so any local
    optimizer may produce it, and push and fetch share one window.

    Parameters
    ----------
    commit_scale : float
        ``s``; 1 is the paper's sum, ``1/n`` the asynchronous mean.
    """

    name: ClassVar[str] = "downpour"
    commit_scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive("commit_scale", self.commit_scale)

    def gain(self, reached: float, steps: int, workers: int) -> float:  # noqa: ARG002
        """Return ``s`` times what the window covers."""
        return self.commit_scale * reached

    def propose(self, before: Vector, after: Vector, steps: int, out: Vector) -> None:  # noqa: ARG002
        """Send ``s (x - x0)``."""
        np.subtract(after, before, out=out)
        if self.commit_scale != 1.0:
            np.multiply(out, self.commit_scale, out=out)


@dataclass(frozen=True)
class AccumulatedGradientRule(DeltaRule):
    """Accumulated gradient normalization: ``c <- c + (x - x0) / k``.

    Hermans, Spanakis and Moeckel, "Accumulated Gradient Normalization", ACML 2017, algorithm 1;
    dist-keras calls it ADAG. A partial window is divided by the steps it took. One worker gives
    Lookahead (Zhang et al., 2019) with step size ``1/k``.
    """

    name: ClassVar[str] = "accumulated_gradient"

    def gain(self, reached: float, steps: int, workers: int) -> float:  # noqa: ARG002
        """Return the mean over the window's steps."""
        return reached / steps

    def propose(self, before: Vector, after: Vector, steps: int, out: Vector) -> None:
        """Send ``(x - x0) / k``."""
        np.subtract(after, before, out=out)
        np.divide(out, steps, out=out)

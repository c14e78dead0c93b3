"""Asynchronous trainers whose server gives late commits less weight."""

from __future__ import annotations

from typing import ClassVar

from distkeras_grid.rules import DistanceRule, DynamicRateRule, EnergyMatchingRule, Rule
from distkeras_grid.trainers.base import Trainer
from distkeras_grid.trainers.downpour import ADAG
from distkeras_grid.trainers.parameters import parameter


class DynSGD(Trainer):
    """Dynamic learning rate: a commit counts ``1 / (staleness + 1)``.

    Jiang et al., "Heterogeneity-aware Distributed Parameter Servers", SIGMOD 2017, in dist-keras'
    form; see `DynamicRateRule`. A slow worker counts little, so its rows should be similar to the
    others'. The window is 5 batches.
    """

    default_window: ClassVar[int] = 5

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return DynamicRateRule()


class StalenessADAG(ADAG):
    """Accumulated gradients, with less of them for weights that other workers have moved.

    Hermans' thesis of 2017 calls it ADAG, dist-keras ``Experimental``; see `DistanceRule`. The
    server keeps one vector for each worker. The window is the number of workers, at least 2.
    """

    gamma: float = parameter(
        default=1e-4, doc="Square of the distance at which a weight's change counts half."
    )

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return DistanceRule(self.gamma)


class GEM(Trainer):
    """Gradient energy matching: all workers together move as momentum SGD would.

    Hermans and Louppe, 2018; see `EnergyMatchingRule`. It exchanges after every batch, which is
    the most that any trainer asks of the network, and the server keeps two vectors for each worker.
    The optimizer must be plain SGD. The window is one batch; with a longer one, the change of the
    window replaces the gradient, which is our extension.
    """

    default_window: ClassVar[int] = 1

    momentum: float = parameter(default=0.9, doc="Momentum of the proxy whose energy is matched.")
    kappa: float = parameter(
        default=1.0, doc="Factor of that energy; the authors call 2 a good value, and 4 diverges."
    )
    largest_scale: float = parameter(default=5.0, doc="Largest factor of a step.")
    exclude_own_commit: bool = parameter(
        default=False,
        doc="Whether the shift of the center leaves out the worker's own last commit. The paper "
        "counts it.",
    )

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return EnergyMatchingRule(**self.arguments())

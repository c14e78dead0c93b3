"""Asynchronous trainers whose workers send the change of their window."""

from __future__ import annotations

from typing import ClassVar, Literal

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import AccumulatedGradientRule, AdagradRule, DownpourRule, Rule
from distkeras_grid.trainers.base import Trainer
from distkeras_grid.trainers.defaults import choose_commit_scale
from distkeras_grid.trainers.parameters import parameter

SERVER_LEARNING_RATE = 0.01


class DOWNPOUR(Trainer):
    """Asynchronous SGD: the center moves by each worker's change of a window.

    Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012. The window is 5 batches.
    """

    default_window: ClassVar[int] = 5

    commit_scale: float | Literal["auto"] = parameter(
        default="auto",
        above=0,
        doc='Factor of each commit. "auto" is 1, but 1 / workers with an adaptive optimizer such '
        "as Adam, because the deltas of several workers would add up to steps that are too long.",
    )
    server_optimizer: Literal["adagrad"] | None = parameter(
        default=None,
        doc="The paper's other form: workers send the sum of their gradients, and the server takes "
        "Adagrad's steps. Workers train with plain SGD; their window is 1 unless given.",
    )
    server_learning_rate: float | None = parameter(
        default=None,
        above=0,
        doc="Rate of the server's Adagrad, default 0.01. Only with `server_optimizer`.",
    )

    def check(self) -> None:
        """Refuse arguments of one form beside the other, and what `TrainerConfig.check` refuses."""
        if self.server_optimizer and self.commit_scale != "auto":
            raise ConfigurationError(
                "commit_scale scales changes of the weights, but a server with Adagrad receives "
                f"gradients. Received: commit_scale={self.commit_scale!r}. Set "
                "server_learning_rate instead."
            )
        if self.server_learning_rate is not None and not self.server_optimizer:
            raise ConfigurationError(
                "server_learning_rate needs server_optimizer='adagrad'. Received: "
                f"server_learning_rate={self.server_learning_rate!r} and no server_optimizer. The "
                "workers' rate is learning_rate."
            )
        super().check()

    def build_rule(self, workers: int, optimizer: str) -> Rule:
        """Return the rule, with a scale that suits the optimizer."""
        if self.server_optimizer:
            rate = self.server_learning_rate
            return AdagradRule(SERVER_LEARNING_RATE if rate is None else rate)
        return DownpourRule(choose_commit_scale(self.commit_scale, optimizer, workers))

    def window_by_default(self, workers: int) -> int:  # noqa: ARG002
        """Return 5, but 1 with Adagrad, which takes single gradients."""
        return 1 if self.server_optimizer else self.default_window


class ADAG(Trainer):
    """Accumulated gradient normalization: the change of a window divided by its batches.

    Hermans, Spanakis and Moeckel, "Accumulated Gradient Normalization", ACML 2017 (AGN there,
    ``ADAG`` in dist-keras). It is not gradient energy matching (GEM), which some slides call ADAG.

    The window is the number of workers, at least 2: the center then moves by about the mean of the
    workers' changes.
    """

    default_window: ClassVar[int] = 2

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return AccumulatedGradientRule()

    def window_by_default(self, workers: int) -> int:
        """Return the number of workers, at least 2."""
        return max(self.default_window, workers)

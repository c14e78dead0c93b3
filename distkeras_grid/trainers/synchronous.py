"""Trainers that work in rounds."""

from __future__ import annotations

from typing import ClassVar

from distkeras_grid.rules import AveragingRule, MeanGradientRule, Rule
from distkeras_grid.trainers.base import Trainer
from distkeras_grid.trainers.defaults import CommunicationWindow
from distkeras_grid.trainers.parameters import parameter


class _QuorumTrainer(Trainer):
    """Base of trainers whose rounds can wait for a share of the workers."""

    quorum: float = parameter(
        default=1.0,
        least=0.5,
        most=1,
        field="quorum",
        doc="Share of the workers that a round waits for; 0.8 suits a desktop grid. A commit that "
        "arrives later is dropped and counted in ``history.late``, and its worker continues from "
        "the center. The run ends when this share of the workers has trained all its rows. A "
        "worker that is lost is started again as long as it makes progress.",
    )


class AveragingTrainer(_QuorumTrainer):
    """Synchronous averaging: all workers train a window, and the center becomes their mean.

    Zinkevich et al., "Parallelized Stochastic Gradient Descent", NIPS 2010
    (``communication_window="once"``); with short windows local SGD (Stich, ICLR 2019). Workers are
    weighted by their samples. The window is 16 batches, on `LocalSets` an iteration. All workers
    must run at the same time.
    """

    default_window: ClassVar[int] = 16

    def choose_local_window(self, seat_rows: int, workers: int) -> CommunicationWindow:
        """Return the given window, else that of an iteration, as in the source of local sets."""
        if self.communication_window is None:
            return CommunicationWindow(None)
        return self.choose_window(seat_rows, workers)

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return AveragingRule()


class SynchronousSGD(_QuorumTrainer):
    """Synchronous SGD: all workers take a step with the mean gradient, with any optimizer.

    Chen et al., "Revisiting Distributed Synchronous SGD", 2016, who use a few more workers than a
    round waits for; see `MeanGradientRule`. It is ``fit`` with a batch of
    ``batch_size * num_workers``, and the same learning rates suit both. The model's ``train_step``
    must pass the gradients to the model's optimizer. The window is one batch; with a longer one, a
    step uses the mean gradient of all its batches. All workers must run at the same time.
    """

    default_window: ClassVar[int] = 1

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return MeanGradientRule()

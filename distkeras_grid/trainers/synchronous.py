"""Trainers whose workers meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from distkeras_grid.rules import AveragingRule, MeanGradientRule, Rule
from distkeras_grid.trainers.base import CommonArguments, Trainer

if TYPE_CHECKING:
    import keras


class _QuorumTrainer(Trainer):
    """What trainers share whose rounds wait for a share of the workers."""

    synchronous: ClassVar[bool] = True

    def __init__(
        self,
        keras_model: keras.Model,
        *positional: object,
        quorum: float = 1.0,
        **common: Unpack[CommonArguments],
    ) -> None:
        self.quorum = quorum
        super().__init__(keras_model, *positional, **common)


class AveragingTrainer(_QuorumTrainer):
    """Synchronous averaging: all workers train a window, the center becomes their mean.

    Zinkevich et al., "Parallelized Stochastic Gradient Descent", NIPS 2010
    (``communication_window="once"``); with short windows local SGD (Stich, ICLR 2019). Workers are
    weighted by their samples.

    Parameters
    ----------
    keras_model : keras.Model
        The model.
    quorum : float, default 1.0
        Share of the workers, from 0.5, whose results make a round; a desktop grid takes 0.8. What
        comes later is dropped, told by ``history.late``, and its worker goes on from the center.
        When so many have trained all their rows, the run ends.
        A worker whose Spark task fails ``spark.task.maxFailures`` times still ends the run, for
        Spark then ends the job of all.
    **common
        As in `Trainer`. The window is 16 batches. All workers must run at the same time.
    """

    default_window: ClassVar[int] = 16

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return AveragingRule()


class SynchronousSGD(_QuorumTrainer):
    """Synchronous SGD: all workers step by the mean of their gradients, with any optimizer.

    Chen et al., "Revisiting Distributed Synchronous SGD", 2016; see `MeanGradientRule`. It is
    ``fit`` with a batch of ``batch_size * num_workers``: rates that suit that batch suit here.

    Parameters
    ----------
    keras_model : keras.Model
        The model; its ``train_step`` must give its gradients to its optimizer.
    quorum : float, default 1.0
        As in `AveragingTrainer`: Chen et al. take a few workers more than a round waits for.
    **common
        As in `Trainer`. The window is one batch; with a longer one a step is made of the mean
        gradient of all its batches. All workers must run at the same time.
    """

    default_window: ClassVar[int] = 1

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return MeanGradientRule()

"""Trainers whose workers meet."""

from __future__ import annotations

from typing import ClassVar, Unpack

import keras

from distkeras_grid.rules import AveragingRule, Rule
from distkeras_grid.trainers.base import CommonArguments, Trainer


class AveragingTrainer(Trainer):
    """Synchronous averaging: all workers train a window, the center becomes their mean.

    Zinkevich et al., "Parallelized Stochastic Gradient Descent", NIPS 2010; with short windows
    local SGD (Stich, ICLR 2019). Workers are weighted by their samples.

    Parameters
    ----------
    keras_model : keras.Model
        The model.
    **common
        As in `Trainer`. The window is 16 batches; ``communication_window="epoch"`` averages once
        an epoch. All workers must run at the same time.
    """

    default_window: ClassVar[int] = 16
    synchronous: ClassVar[bool] = True

    def __init__(
        self, keras_model: keras.Model, *positional: object, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(keras_model, *positional, **common)

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule."""
        return AveragingRule()

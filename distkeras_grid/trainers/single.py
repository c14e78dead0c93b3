"""Training on one executor."""

from __future__ import annotations

from typing import ClassVar

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import Rule, SequentialRule
from distkeras_grid.trainers.base import Trainer


class SingleTrainer(Trainer):
    """Sequential training by one worker: the baseline of each comparison.

    With ``shuffle=False`` its steps are those of ``model.fit(shuffle=False)``. The window is 16
    batches; it only sets how often weights and figures reach the driver. `num_workers` can only be
    1.
    """

    default_window: ClassVar[int] = 16

    @property
    def requested_workers(self) -> int:
        """One worker."""
        return 1

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule: the center is the worker's weights."""
        return SequentialRule()

    def check(self) -> None:
        """Refuse several workers, and what `TrainerConfig.check` refuses."""
        if self.num_workers not in (None, 1):
            raise ConfigurationError(
                "SingleTrainer trains with one worker; every other trainer takes more. "
                f"Received: num_workers={self.num_workers!r}."
            )
        super().check()

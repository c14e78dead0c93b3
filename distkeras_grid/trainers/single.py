"""Training on one executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import Rule, SequentialRule
from distkeras_grid.trainers.base import CommonArguments, Trainer

if TYPE_CHECKING:
    import keras


class SingleTrainer(Trainer):
    """Sequential training by one worker: the baseline of each comparison.

    With ``shuffle=False`` its steps are those of ``model.fit(shuffle=False)``. The window only
    sets how often weights and figures reach the driver.

    Parameters
    ----------
    keras_model : keras.Model
        The model.
    **common
        As in `Trainer`; `num_workers` can only be 1.
    """

    default_window: ClassVar[int] = 16

    def __init__(
        self, keras_model: keras.Model, *positional: object, **common: Unpack[CommonArguments]
    ) -> None:
        workers = common.get("num_workers")
        if workers not in (None, 1):
            raise ConfigurationError(
                "SingleTrainer trains with one worker; every other trainer takes more. "
                f"Received: num_workers={workers!r}."
            )
        super().__init__(keras_model, *positional, **common)

    @property
    def workers_asked(self) -> int:
        """One worker."""
        return 1

    def build_rule(self, workers: int, optimizer: str) -> Rule:  # noqa: ARG002
        """Return the rule: the center is the worker's weights."""
        return SequentialRule()

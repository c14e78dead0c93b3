"""What a run is asked for, beside the trainer's own arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class TrainRequest:
    """What `Trainer.train` was asked for; its docstring has the meanings."""

    data: Any
    shuffle: bool
    validation_data: Any
    callbacks: Sequence[keras.callbacks.Callback]
    class_weight: Mapping[int, float] | None
    sample_weight_col: str | None
    seed: int

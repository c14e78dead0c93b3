"""Several models of the same shape as one model, which combines their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from distkeras_grid.engine.model_io import model_tensors
from distkeras_grid.errors import ConfigurationError

COMBINATIONS = ("mean", "vote", "geometric")


def check_combination(how: str) -> str:
    """Return the name of a combination."""
    if how not in COMBINATIONS:
        raise ConfigurationError(
            f"combine must be one of {', '.join(map(repr, COMBINATIONS))}. Received: {how!r}."
        )
    return how


@keras.saving.register_keras_serializable(package="distkeras_grid")
class Combination(keras.layers.Layer):  # type: ignore[misc]
    """One output from those of several models."""

    def __init__(self, how: str = "mean", **options: Any) -> None:
        super().__init__(**options)
        self.how = check_combination(how)

    def call(self, outputs: Sequence[Any]) -> Any:
        """Combine outputs of the shape ``(rows, ..., classes)``."""
        from keras import ops

        stacked = ops.stack(list(outputs), axis=0)
        if self.how == "vote":
            classes = stacked.shape[-1]
            stacked = ops.one_hot(ops.argmax(stacked, axis=-1), classes, dtype=stacked.dtype)
        if self.how != "geometric":
            return ops.mean(stacked, axis=0)
        return ops.softmax(ops.mean(ops.log(stacked + keras.config.epsilon()), axis=0), axis=-1)

    def compute_output_shape(self, input_shape: Sequence[tuple[int | None, ...]]) -> Any:
        """Return the shape of the outputs, which is also that of the combination."""
        return input_shape[0]

    def get_config(self) -> dict[str, Any]:
        """Return what the constructor takes."""
        return {**super().get_config(), "how": self.how}


def check_combinable(model: Any) -> None:
    """Refuse a model that cannot be a member of an ensemble."""
    inputs, outputs = model_tensors(model, "inputs"), model_tensors(model, "outputs")
    if len(inputs) != 1 or len(outputs) != 1:
        raise ConfigurationError(
            "An ensemble combines models that declare one input and one output. "
            f"Received: {len(inputs)} inputs, {len(outputs)} outputs of model {model.name!r}."
        )


def combine_models(models: Sequence[Any], how: str) -> Any:
    """Return a model of several models."""
    check_combinable(models[0])
    (first,) = models[0].inputs
    shared = keras.Input(first.shape[1:], dtype=first.dtype, name=first.name)
    outputs = []
    for number, model in enumerate(models):
        model.name = f"member_{number}"
        outputs.append(model(shared))
    return keras.Model(shared, Combination(how, name=how)(outputs), name="ensemble")

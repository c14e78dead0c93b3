"""Several models of the same shape as one model, which gives the mean of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distkeras_grid.engine.model_io import model_tensors
from distkeras_grid.errors import ConfigurationError


def check_combinable(model: Any) -> None:
    """Refuse a model that cannot be a member of an ensemble."""
    inputs, outputs = model_tensors(model, "inputs"), model_tensors(model, "outputs")
    if len(inputs) != 1 or len(outputs) != 1:
        raise ConfigurationError(
            "An ensemble combines models that declare one input and one output. "
            f"Received: {len(inputs)} inputs, {len(outputs)} outputs of model {model.name!r}."
        )


def combine_models(models: Sequence[Any]) -> Any:
    """Return a model of several models."""
    import keras

    check_combinable(models[0])
    (first,) = models[0].inputs
    shared = keras.Input(first.shape[1:], dtype=first.dtype, name=first.name)
    outputs = []
    for number, model in enumerate(models):
        model.name = f"member_{number}"
        outputs.append(model(shared))
    return keras.Model(shared, keras.layers.Average(name="mean")(outputs), name="ensemble")

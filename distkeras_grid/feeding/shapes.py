"""What shape a model takes and gives, and whether a column fits it."""

from __future__ import annotations

from typing import Any, Literal

from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import Field


def check_fit(model: Any, field: Field) -> None:
    """Refuse a feature column whose values are not of the shape that the model takes.

    Parameters
    ----------
    model : keras.Model
        A model; one whose shapes nobody knows, as of a class of the user's, is not checked.
    field : Field
        The feature column.

    Raises
    ------
    ConfigurationError
        If the model has several inputs or outputs.
    SchemaError
        If the shapes differ; names both.
    """
    ends: tuple[Literal["inputs", "outputs"], ...] = ("inputs", "outputs")
    for end in ends:
        count = len(_tensors(model, end))
        if count > 1:
            raise ConfigurationError(
                f"Model {model.name!r} has {count} {end}; data of one feature column and one label "
                "need a model with one input and one output."
            )
    inputs = _tensors(model, "inputs")
    if not inputs:
        return
    wanted = tuple(inputs[0].shape[1:])
    fits = len(wanted) == len(field.shape) and all(
        size in (None, given) for size, given in zip(wanted, field.shape, strict=True)
    )
    if not fits:
        raise SchemaError(
            f"Column {field.name!r} holds values of shape {field.shape}, but model {model.name!r} "
            f"takes {wanted}. Reshape in the model (keras.layers.Reshape), build it for the data, "
            f"or describe the column with features_col=Field({field.name!r}, shape=...)."
        )


def output_size(model: Any) -> int | None:
    """Return the length of the last axis of a model's output, None if nobody knows it."""
    outputs = _tensors(model, "outputs")
    size = outputs[0].shape[-1] if outputs else None
    return None if size is None else int(size)


def _tensors(model: Any, end: Literal["inputs", "outputs"]) -> list[Any]:
    # Models whose layers Keras does not know raise AttributeError here, by its own design.
    return list(getattr(model, end, None) or [])

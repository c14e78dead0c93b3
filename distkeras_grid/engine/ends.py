"""A Keras model's inputs and outputs, and values in the structure that the model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal


def declared(model: Any, ends: Literal["inputs", "outputs"]) -> list[Any]:
    """Return a model's inputs or outputs; none if its class declares none to Keras."""
    return list(getattr(model, ends, None) or [])


def input_dtypes(model: Any) -> list[str]:
    """Return the types of a model's inputs; float32 if it declares none."""
    return [str(tensor.dtype) for tensor in declared(model, "inputs")] or ["float32"]


def packed(model: Any, end: Literal["input", "output"], values: Sequence[Any]) -> Any:
    """Return the values as ``fit`` passes them: one as it is, several in a tuple or dict.

    Parameters
    ----------
    model : keras.Model
        A model with as many inputs, or outputs, as there are values.
    end : {"input", "output"}
        Which end.
    values : sequence of array or tensor
        In the order of ``model.inputs`` or ``model.outputs``.
    """
    import keras

    if len(values) == 1:
        return values[0]
    structure = keras.tree.pack_sequence_as(getattr(model, end), list(values))
    return keras.tree.lists_to_tuples(structure)

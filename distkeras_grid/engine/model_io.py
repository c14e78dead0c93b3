"""A Keras model's inputs and outputs, and values in the structure that the model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal


def model_tensors(model: Any, ends: str) -> list[Any]:
    """Return a model's inputs or outputs; none if its class declares none to Keras."""
    return list(getattr(model, ends, None) or [])


def input_dtypes(model: Any, count: int = 1) -> list[str]:
    """Return the types of a model's inputs; float32 for each of `count` if it declares none."""
    dtypes = [str(tensor.dtype) for tensor in model_tensors(model, "inputs")]
    return dtypes or ["float32"] * max(1, count)


def pack_like_model(model: Any, end: Literal["input", "output"], values: Sequence[Any]) -> Any:
    """Return the values as ``fit`` passes them: one as it is, several in a tuple or dict.

    `values`: in the order of ``model.inputs`` or ``model.outputs``; None for an output without a
    label.
    """
    import keras

    # A class of the user's declares none, and Keras raises AttributeError then.
    structure = getattr(model, end, None) if model_tensors(model, f"{end}s") else None
    if structure is None:
        structure = list(values)
    if len(values) == 1 and not isinstance(structure, Mapping):
        return values[0]
    return keras.tree.lists_to_tuples(keras.tree.pack_sequence_as(structure, list(values)))

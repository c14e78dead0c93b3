"""Layers and losses that depend on all rows of a batch, which micro-batches would change."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distkeras_grid.engine.keras_model import layers_of, normalizations
from distkeras_grid.errors import ConfigurationError

#: Layers of Keras that mix the rows of a batch, or that change their own weights in each call.
TOGETHER = ("SpectralNormalization", "MixUp", "CutMix")
#: Layers that mix the values along an axis, which may be that of the rows.
ALONG_AXIS = ("LayerNormalization", "RMSNormalization", "UnitNormalization", "Softmax")
#: Losses of Keras that are one ratio along an axis, or along all if it is None.
RATIOS = (
    "dice",
    "tversky",
    "cosine_similarity",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "sparse_categorical_crossentropy",
)


def check_rows_apart(model: Any) -> None:
    """Refuse layers that compute something else from micro-batches than from the batch."""
    normalized = [layer.name for layer in normalizations(model)]
    if normalized:
        raise ConfigurationError(
            "Batch normalization would see the rows of a micro-batch and not of the batch, so the "
            f"model would be another one. Received: layers {normalized}. Use micro_batches=1, "
            "freeze them (trainable=False), or use LayerNormalization or GroupNormalization."
        )
    together = [
        f"{type(layer).__name__} {layer.name!r}" for layer in layers_of(model) if _mixes(layer)
    ]
    if together:
        raise ConfigurationError(
            "A layer that mixes the rows of a batch, or changes its own weights in each call, "
            f"would do so in each micro-batch. Received: {', '.join(together)}. Use "
            "micro_batches=1."
        )


def check_mean_loss(model: Any, micro_batches: int) -> None:
    """Refuse losses whose value over a batch is not the mean of those over its rows."""
    import keras

    if micro_batches == 1:
        return
    for name in keras.tree.flatten(model.loss):
        loss = keras.losses.get(name)
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in ("sum_over_batch_size", "mean"):
            raise ConfigurationError(
                "Gradients of micro-batches add up to that of the batch if the loss is a mean over "
                f"rows. Received: {type(loss).__name__}(reduction={reduction!r}). Use "
                "reduction='sum_over_batch_size', or micro_batches=1."
            )
        if why := _over_batch(loss, len(model.outputs[0].shape)):
            raise ConfigurationError(
                "Gradients of micro-batches add up to that of the batch if the loss is a mean over "
                f"rows. Received: {name!r}, which {why}. Use another loss, or micro_batches=1."
            )


def _mixes(layer: Any) -> bool:
    """Return whether a layer mixes rows, or changes its own weights in each call."""
    if any(_is(layer, name) for name in TOGETHER):
        return True
    return any(_is(layer, name) for name in ALONG_AXIS) and 0 in _axes(layer.axis)


def _is(layer: Any, name: str) -> bool:
    import keras

    # Not all versions of Keras have all of them.
    kind = getattr(keras.layers, name, None)
    return kind is not None and isinstance(layer, kind)


def _over_batch(loss: Any, rank: int) -> str:
    """Return what a loss of Keras does with the rows of a batch together; empty if nothing."""
    import keras

    function, arguments = _called(loss)
    if function is keras.losses.circle:
        return "compares the rows of a batch with each other"
    if not any(function is getattr(keras.losses, name) for name in RATIOS):
        return ""
    defaults = inspect.signature(function).parameters
    # Keras counts what it does not ignore over the whole batch.
    ignored = defaults.get("ignore_class")
    if ignored is not None and arguments.get("ignore_class", ignored.default) is not None:
        return "divides by the number of all values of a batch that are not of ignore_class"
    axis = arguments.get("axis", defaults["axis"].default)
    if axis is None or 0 in {each % rank for each in _axes(axis)}:
        return f"is one ratio over the rows of a batch (axis={axis!r})"
    return ""


def _called(loss: Any) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Return the function that a loss calls, and the arguments by name that it gives."""
    if isinstance(loss, functools.partial):
        return loss.func, loss.keywords
    # Keras has no public API for the arguments.
    return getattr(loss, "fn", loss), getattr(loss, "_fn_kwargs", {})


def _axes(axis: int | Iterable[int]) -> Sequence[int]:
    return [axis] if isinstance(axis, int) else list(axis)

"""The convolution layers of a Keras model that can be divided, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from distkeras_grid.engine.compile_settings import has_own_train_step
from distkeras_grid.engine.keras_model import calls_in_order, layers_of
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.geometry import Convolution

#: Height, width and channels of an input; None where it has no fixed size.
Shape: TypeAlias = "tuple[int | None, ...]"


@dataclass(frozen=True)
class FoundLayers:
    """What `find_convolutions` returns."""

    # Layers that can be divided, in the order of the model
    layers: dict[str, tuple[Any, Convolution]]
    whole: dict[str, str]  # The other Conv2D layers by name, and why they stay on the master


def find_convolutions(model: Any) -> FoundLayers:
    """Find the ``Conv2D`` layers of a model, at any depth."""
    import keras

    layers: dict[str, tuple[Any, Convolution]] = {}
    whole: dict[str, str] = {}
    own_step, trained = has_own_train_step(model), _trained_before(model)
    inputs, callers = _inputs(model), _other_callers(model)
    for layer in layers_of(model):
        if not isinstance(layer, keras.layers.Conv2D):
            continue
        if layer.name in {*layers, *whole}:
            raise ConfigurationError(
                "Convolutions are divided by their names, so each needs its own. Received: two "
                f"layers {layer.name!r}."
            )
        shapes = inputs.get(id(layer), [])
        reason = _reason_against(layer, shapes, callers.get(id(layer)))
        if own_step:
            reason = "the model has a train_step of its own, which may call it several times"
        if reason:
            whole[layer.name] = reason
        else:
            needed = trained.get(layer.name, True)
            layers[layer.name] = layer, _described(layer, shapes[0], needed=needed)
    return FoundLayers(layers, whole)


def _reason_against(layer: Any, inputs: Sequence[Shape], caller: str | None) -> str:
    """Return why a convolution with such inputs stays whole; empty if it can be divided.

    `inputs`: one for each call in a batch.
    `caller`: a layer that calls it, too, nobody knows how often.
    """
    import keras

    reasons = (
        (type(layer) is not keras.layers.Conv2D, f"{type(layer).__name__} is not Conv2D itself"),
        (layer.data_format != "channels_last", "its channels do not come last"),
        (layer.compute_dtype != "float32", f"it computes in {layer.compute_dtype}, not float32"),
        (layer.variable_dtype != "float32", f"its kernel is {layer.variable_dtype}, not float32"),
        (bool(getattr(layer, "lora_enabled", False)), "it has a LoRA kernel"),
        (layer.groups > 1, "it has groups"),
        (max(layer.dilation_rate) > 1, "it is dilated"),
        (layer.filters == 1, "it has a single output channel"),
        (not inputs or None in inputs[0], "its input has no fixed size"),
        (len(inputs) > 1, f"it is called {len(inputs)} times in a batch"),
        (caller is not None, f"{caller} calls it, too, and nobody knows with which inputs"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _inputs(model: Any) -> dict[int, list[Shape]]:
    """Return the shapes of the inputs of a layer, one for each call, by the layer's `id`."""
    by_layer: dict[int, list[Shape]] = {}
    visited: set[int] = set()
    # An inner model comes after the one that calls it, and a Sequential before its own graph.
    for each in filter(_is_functional, layers_of(model)):
        times = max(1, len(by_layer.get(id(each), [])))
        for call in calls_in_order(each):
            if id(call) not in visited:
                visited.add(id(call))
                shapes = [tuple(tensor.shape[1:]) for tensor in call.input_tensors]
                by_layer.setdefault(id(call.operation), []).extend(shapes * times)
    return by_layer


def _other_callers(model: Any) -> dict[int, str]:
    """Return a layer that calls others by itself, such as a wrapper, by the `id` of the others."""
    return {
        id(inner): f"{type(each).__name__} {each.name!r}"
        for each in layers_of(model)
        if not _is_functional(each)
        for inner in layers_of(each)[1:]
    }


def _is_functional(layer: Any) -> bool:
    """Return whether Keras knows the calls of layers within a model."""
    import keras

    # Other models and layers may use the name for something else.
    outputs = getattr(layer, "outputs", None)
    return isinstance(outputs, list) and all(map(keras.utils.is_keras_tensor, outputs))


def _described(layer: Any, shape: Sequence[Any], *, needed: bool) -> Convolution:
    height, width, channels = shape
    return Convolution(
        name=layer.name,
        input_shape=(height, width, channels),
        kernel_size=tuple(layer.kernel_size),
        channels=layer.filters,
        strides=tuple(layer.strides),
        padding=layer.padding,
        input_gradient=needed,
    )


def _trained_before(model: Any) -> dict[str, bool]:
    """Return, by the name of a layer, whether anything before it has weights that are trained.

    Only layers of the model itself are listed; layers of nested models count as if it were so.
    """
    import keras

    trained: dict[str, bool] = {}
    for layer in getattr(model, "operations", None) or model.layers:
        sources = [
            tensor._keras_history.operation
            for node in getattr(layer, "_inbound_nodes", [])
            for tensor in node.input_tensors
        ]
        trained[layer.name] = any(
            bool(getattr(source, "trainable_variables", [])) or trained.get(source.name, True)
            for source in sources
            if not isinstance(source, keras.layers.InputLayer)
        )
    return trained

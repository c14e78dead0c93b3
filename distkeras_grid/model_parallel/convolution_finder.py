"""The convolution layers of a Keras model that can be divided, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from distkeras_grid.engine.compile_settings import has_own_train_step
from distkeras_grid.engine.keras_model import calls_in_order, layers_held_by, layers_of
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.geometry import Convolution, Kind

#: Spatial sizes and channels of an input; None where it has no fixed size.
Shape: TypeAlias = "tuple[int | None, ...]"


@dataclass(frozen=True)
class FoundLayers:
    """What `find_convolutions` returns."""

    # Layers that can be divided, in the order of the model
    layers: dict[str, tuple[Any, Convolution]]
    whole: dict[str, str]  # The other convolutions by name, and why they stay on the master

    def chosen(self, names: tuple[str, ...]) -> None:
        """Refuse names of layers that cannot be divided."""
        for name in names:
            if name not in self.layers:
                why = self.whole.get(name, "the model has no convolution of this name")
                raise ConfigurationError(
                    f"Layer {name!r} cannot be divided: {why}. Layers that can be divided: "
                    f"{', '.join(self.layers) or 'none'}."
                )


def find_convolutions(model: Any) -> FoundLayers:
    """Find the convolutions of a model, at any depth."""
    layers: dict[str, tuple[Any, Convolution]] = {}
    whole: dict[str, str] = {}
    # A user-defined train_step may differentiate with respect to the input.
    trained = {} if has_own_train_step(model) else _trained_before(model)
    inputs, callers = _input_shapes(model), _other_callers(model)
    for layer in layers_of(model):
        if not _is_convolution(layer):
            continue
        if layer.name in {*layers, *whole}:
            raise ConfigurationError(
                "Convolutions are divided by their names, so each needs its own. Received: two "
                f"layers {layer.name!r}."
            )
        shapes = inputs.get(id(layer), [])
        reason = _reason_against(layer, shapes, callers.get(id(layer)))
        if reason:
            whole[layer.name] = reason
            continue
        described = _described(layer, shapes[0], needed=trained.get(layer.name, True))
        if described.units == 1:
            whole[layer.name] = "it has a single channel or group"
        else:
            layers[layer.name] = (layer, described)
    return FoundLayers(layers, whole)


def _is_convolution(layer: Any) -> bool:
    import keras

    kinds = keras.layers
    return isinstance(
        layer,
        kinds.Conv1D
        | kinds.Conv2D
        | kinds.Conv3D
        | kinds.DepthwiseConv1D
        | kinds.DepthwiseConv2D
        | kinds.SeparableConv1D
        | kinds.SeparableConv2D
        | kinds.Conv1DTranspose
        | kinds.Conv2DTranspose
        | kinds.Conv3DTranspose,
    )


def _reason_against(layer: Any, shapes: Sequence[Shape], caller: str | None) -> str:
    """Return why a convolution with such inputs stays whole; empty if it can be divided.

    `caller` is a layer that calls it, too, on inputs that nobody knows.
    """
    import keras

    kind = type(layer)
    plain = (
        *(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D),
        *(keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D),
    )
    if kind not in plain:
        return f"{kind.__name__} is none of {', '.join(each.__name__ for each in plain)}"
    reasons = (
        (layer.data_format != "channels_last", "its channels do not come last"),
        (layer.compute_dtype != "float32", f"it computes in {layer.compute_dtype}, not float32"),
        (layer.variable_dtype != "float32", f"its kernel is {layer.variable_dtype}, not float32"),
        (bool(getattr(layer, "lora_enabled", False)), "it has a LoRA kernel"),
        (not shapes or any(None in shape for shape in shapes), "its input has no fixed size"),
        (
            len(shapes) > 1,
            f"its inputs have several sizes: {', '.join(sorted(map(str, shapes)))}",
        ),
        (caller is not None, f"{caller} calls it, too, and nobody knows with inputs of which size"),
        (
            max(layer.strides) > 1 and max(layer.dilation_rate) > 1,
            "it has strides and dilation at once",
        ),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _input_shapes(model: Any) -> dict[int, list[Shape]]:
    """Return spatial sizes and channels of the different inputs of layers, by the layer's `id`."""
    by_layer: dict[int, list[Shape]] = {}
    for each in filter(_is_functional, layers_of(model)):
        for call in calls_in_order(each):
            shapes = by_layer.setdefault(id(call.operation), [])
            shapes += [s for t in call.input_tensors if (s := tuple(t.shape[1:])) not in shapes]
    return by_layer


def _other_callers(model: Any) -> dict[int, str]:
    """Return a layer that calls others by itself, such as a wrapper, by the `id` of the others."""
    return {
        id(inner): f"{type(each).__name__} {each.name!r}"
        for each in layers_of(model)
        if not _is_functional(each)
        for inner in layers_held_by(each)
    }


def _is_functional(layer: Any) -> bool:
    """Return whether Keras knows the calls of layers within a model."""
    import keras

    # Other models and layers may use the name for something else.
    outputs = getattr(layer, "outputs", None)
    return isinstance(outputs, list) and all(map(keras.utils.is_keras_tensor, outputs))


def _described(layer: Any, shape: Sequence[Any], *, needed: bool) -> Convolution:
    depthwise = hasattr(layer, "depth_multiplier")
    kind: Kind = "depthwise" if depthwise else "convolution"
    return Convolution(
        name=layer.name,
        kind=kind,
        input_shape=tuple(int(n) for n in shape),
        kernel_size=tuple(layer.kernel_size),
        channels=shape[-1] * layer.depth_multiplier if depthwise else layer.filters,
        strides=tuple(layer.strides),
        dilation=tuple(layer.dilation_rate),
        padding=layer.padding,
        groups=shape[-1] if depthwise else layer.groups,
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

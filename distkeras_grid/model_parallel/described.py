"""The convolution layers of a Keras model that can be divided, and why others cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distkeras_grid.engine.compile_settings import has_own_train_step
from distkeras_grid.engine.keras_model import layers_of
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.geometry import Convolution, Kind


@dataclass(frozen=True)
class FoundLayers:
    """What `find_convolutions` returns.

    Parameters
    ----------
    layers : dict of str to (keras.layers.Layer, Convolution)
        Layers that can be divided, in the order of the model.
    whole : dict of str to str
        The other convolutions by name, and why they stay on the master.
    """

    layers: dict[str, tuple[Any, Convolution]]
    whole: dict[str, str]

    def chosen(self, names: tuple[str, ...]) -> None:
        """Refuse names of layers that cannot be divided.

        Raises
        ------
        ConfigurationError
            If a layer cannot be divided. Names the first such layer, the reason, and the layers
            that can be divided.
        """
        for name in names:
            if name not in self.layers:
                why = self.whole.get(name, "the model has no convolution of this name")
                raise ConfigurationError(
                    f"Layer {name!r} cannot be divided: {why}. Layers that can be divided: "
                    f"{', '.join(self.layers) or 'none'}."
                )


def find_convolutions(model: Any) -> FoundLayers:
    """Find the convolutions of a model, at any depth.

    Parameters
    ----------
    model : keras.Model
        A built model.

    Raises
    ------
    ConfigurationError
        If two convolutions have the same name.
    """
    layers: dict[str, tuple[Any, Convolution]] = {}
    whole: dict[str, str] = {}
    # A user-defined train_step may differentiate with respect to the input.
    trained = {} if has_own_train_step(model) else _trained_before(model)
    for layer in layers_of(model):
        if not _is_convolution(layer):
            continue
        if layer.name in {*layers, *whole}:
            raise ConfigurationError(
                "Convolutions are divided by their names, so each needs its own. Received: two "
                f"layers {layer.name!r}."
            )
        reason = _reason_against(layer)
        if reason:
            whole[layer.name] = reason
            continue
        described = _described(layer, needed=trained.get(layer.name, True))
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


def _reason_against(layer: Any) -> str:
    """Return why a convolution stays whole; empty if it can be divided."""
    import keras

    kind = type(layer)
    plain = (
        *(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D),
        *(keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D),
    )
    if kind not in plain:
        return f"{kind.__name__} is none of {', '.join(each.__name__ for each in plain)}"
    shape = _input_shape(layer)
    reasons = (
        (layer.data_format != "channels_last", "its channels do not come last"),
        (layer.compute_dtype != "float32", f"it computes in {layer.compute_dtype}, not float32"),
        (layer.variable_dtype != "float32", f"its kernel is {layer.variable_dtype}, not float32"),
        (bool(getattr(layer, "lora_enabled", False)), "it has a LoRA kernel"),
        (not shape or None in shape, "its input has no fixed size"),
        (
            max(layer.strides) > 1 and max(layer.dilation_rate) > 1,
            "it has strides and dilation at once",
        ),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _input_shape(layer: Any) -> tuple[int | None, ...]:
    """Return spatial sizes and channels of a layer's only input; empty if it has several."""
    try:
        shape = layer.input.shape
    except (AttributeError, ValueError):
        return ()
    return tuple(shape[1:])


def _described(layer: Any, *, needed: bool) -> Convolution:
    depthwise = hasattr(layer, "depth_multiplier")
    shape = tuple(int(n) for n in layer.input.shape[1:])
    kind: Kind = "depthwise" if depthwise else "convolution"
    return Convolution(
        name=layer.name,
        kind=kind,
        input_shape=shape,
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

    found: dict[str, bool] = {}
    for layer in getattr(model, "operations", None) or model.layers:
        sources = [
            tensor._keras_history.operation
            for node in getattr(layer, "_inbound_nodes", [])
            for tensor in node.input_tensors
        ]
        found[layer.name] = any(
            bool(getattr(source, "trainable_variables", [])) or found.get(source.name, True)
            for source in sources
            if not isinstance(source, keras.layers.InputLayer)
        )
    return found

"""Whether the loop over a window, or its step, is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from distkeras_grid.engine.compile_settings import has_own_train_step
from distkeras_grid.engine.keras_model import layers_of

# On a CPU, XLA makes a loop over convolutions or pooling 20 to 100 times slower, and one over
# dense layers 1.2 to 1.6 times faster (measured, TensorFlow 2.21). With other layers than these,
# TensorFlow uses its own kernels, and JAX a call of XLA for each batch.
XLA_LAYERS = frozenset(
    {
        "Activation",
        "Add",
        "AlphaDropout",
        "Average",
        "BatchNormalization",
        "Concatenate",
        "Dense",
        "Dot",
        "Dropout",
        "ELU",
        "EinsumDense",
        "Flatten",
        "GaussianDropout",
        "GaussianNoise",
        "Identity",
        "InputLayer",
        "LayerNormalization",
        "LeakyReLU",
        "Maximum",
        "Minimum",
        "Multiply",
        "Normalization",
        "PReLU",
        "RMSNormalization",
        "ReLU",
        "RepeatVector",
        "Rescaling",
        "Reshape",
        "Softmax",
        "Subtract",
        "UnitNormalization",
    }
)


# PyTorch records a step of these once and repeats it, without Keras' Python code around each
# operation. Layers that draw from a seed read it in Python, which would be the same number always.
TRACED_LAYERS = XLA_LAYERS - {"AlphaDropout", "GaussianDropout", "GaussianNoise"} | {
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "DepthwiseConv2D",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "SeparableConv2D",
    "ZeroPadding2D",
}


def serves_xla(layer: Any) -> bool:
    """Return whether XLA is known to serve a layer well on a CPU."""
    return _is_of_keras(layer, XLA_LAYERS)


def serves_tracing(layer: Any) -> bool:
    """Return whether a layer is known to do the same in each step, so that it can be recorded."""
    return _is_of_keras(layer, TRACED_LAYERS) and getattr(layer, "seed", None) is None


def decide_jit(
    model: Any, jit: bool | Literal["auto"], serves: Callable[[Any], bool] = serves_xla
) -> bool:
    """Decide whether the loop over the windows of a model, or its step, is compiled."""
    if model.run_eagerly:
        return False
    if jit != "auto":
        return bool(jit)
    return not has_own_train_step(model) and all(serves(part) for part in layers_of(model))


def _is_of_keras(layer: Any, names: frozenset[str]) -> bool:
    import keras

    if isinstance(layer, keras.Model):
        # Its layers are checked one by one. A class of the user's may call other operations, too.
        return type(layer).__module__.split(".")[0] == "keras"
    return type(layer).__name__ in names and type(layer).__module__.startswith("keras.")

"""Whether XLA compiles the loop over a window."""

from __future__ import annotations

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


def decide_jit(model: Any, jit: bool | Literal["auto"]) -> bool:
    """Decide whether XLA compiles the loop over the windows of a model.

    Parameters
    ----------
    model : keras.Model
        The compiled model.
    jit : bool or "auto"
        ``"auto"`` says yes to Keras' own ``train_step`` over layers that XLA is known to serve
        well on a CPU, and no to all else.
    """
    if model.run_eagerly:
        return False
    if jit != "auto":
        return bool(jit)
    return not has_own_train_step(model) and all(_serves_well(part) for part in layers_of(model))


def _serves_well(layer: Any) -> bool:
    import keras

    if isinstance(layer, keras.Model):
        # Its layers are checked one by one. A class of the user's may call other operations, too.
        return type(layer).__module__.split(".")[0] == "keras"
    return type(layer).__name__ in XLA_LAYERS and type(layer).__module__.startswith("keras.")

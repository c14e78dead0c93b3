"""The time of the pieces of a model, measured with a micro-batch.

Each piece runs alone, forward and backward, on random numbers, so nowhere is more than one piece
trained at a time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.cuts import LayerGroup

#: Measured passes of a piece; the median counts. One more before them compiles.
PASSES = 3


def measure_pieces(model: Any, cuts: Mapping[str, Any], rows: int) -> list[LayerGroup]:
    """Measure all pieces of a model; `cuts` as `find_cuts` returns them."""
    import keras

    tensors = [model.inputs[0], *cuts.values(), model.outputs[0]]
    names = [*cuts, model.outputs[0]._keras_history.operation.name]
    for name, tensor in zip(names, tensors[1:], strict=True):
        if None in tensor.shape[1:]:
            raise ConfigurationError(
                f"Layer {name!r} has no fixed size, so its time cannot be measured. Received: "
                f"{tensor.shape}. Give the model an input of a fixed size, or name the cuts."
            )
    return [
        _measured(keras.Model(start, output), name, rows)
        for name, (start, output) in zip(names, pairwise(tensors), strict=True)
    ]


def _measured(piece: Any, name: str, rows: int) -> LayerGroup:
    import tensorflow as tf

    def both_ways(x: Any) -> list[Any]:
        values = [variable.value for variable in piece.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = piece(x, training=True)
        gradients = tape.gradient(y, [x, *values], output_gradients=tf.ones_like(y))
        return [gradient for gradient in gradients if gradient is not None]

    states = [(variable, variable.numpy()) for variable in piece.non_trainable_variables]
    shape = (rows, *piece.inputs[0].shape[1:])
    x = tf.constant(np.random.default_rng(0).random(shape, np.float32))
    forward = _median(lambda x: piece(x, training=True), x)
    both = _median(both_ways, x)
    for variable, value in states:
        variable.assign(value)
    return LayerGroup(
        name=name,
        forward=forward,
        backward=max(both - forward, 1e-9),
        sent=4 * rows * int(np.prod(piece.outputs[0].shape[1:])),
        trains=bool(piece.trainable_variables),
    )


def _median(function: Callable[[Any], Any], x: Any) -> float:
    import tensorflow as tf

    compiled, seconds = tf.function(function, autograph=False), []
    for _ in range(PASSES + 1):
        clock = time.perf_counter()
        # Until the numbers are there, whatever computes them.
        for tensor in tf.nest.flatten(compiled(x)):
            tf.convert_to_tensor(tensor).numpy()
        seconds.append(time.perf_counter() - clock)
    return statistics.median(seconds[1:])

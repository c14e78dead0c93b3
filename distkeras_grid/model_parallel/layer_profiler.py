"""What the pieces of a model cost, measured: time of a micro-batch, and bytes in memory.

Each piece runs alone, forward and backward, on random numbers, so nowhere is more than one piece
trained at a time. Its bytes are counted: weights, gradients and optimizer state by their sizes, and
what the backward pass needs of the forward pass from the compiled graph that has both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from distkeras_grid.engine.keras_model import optimizer_slots
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.cuts import LayerGroup
from distkeras_grid.model_parallel.pipeline_partition import Cut

#: Measured passes of a piece; the median counts. One more before them compiles.
PASSES = 3
#: Weights and the sum of their gradients, and the gradients of the micro-batch at work.
COPIES = 3


def measure_pieces(model: Any, cuts: Sequence[Cut], rows: int) -> list[LayerGroup]:
    """Measure all pieces of a model."""
    import keras

    tensors = [model.inputs[0], *(cut.tensor for cut in cuts), model.outputs[0]]
    names = [*(cut.name for cut in cuts), model.outputs[0]._keras_history.operation.name]
    for name, tensor in zip(names, tensors[1:], strict=True):
        if None in tensor.shape[1:]:
            raise ConfigurationError(
                f"Layer {name!r} has no fixed size, so its time and memory cannot be measured. "
                f"Received: {tensor.shape}. Give the model an input of a fixed size, or name the "
                "cuts and give no memory_limit."
            )
    slots = _slots_per_weight(model)
    return [
        _measured(keras.Model(start, output), name, rows, slots)
        for name, (start, output) in zip(names, pairwise(tensors), strict=True)
    ]


def unmeasured_pieces(model: Any, cuts: Sequence[Cut]) -> list[LayerGroup]:
    """Return the pieces of a model without what they cost, for cuts that are named."""
    import keras

    tensors = [model.inputs[0], *(cut.tensor for cut in cuts), model.outputs[0]]
    names = [*(cut.name for cut in cuts), model.outputs[0]._keras_history.operation.name]
    pieces = (keras.Model(start, output) for start, output in pairwise(tensors))
    return [
        LayerGroup(
            name=name,
            forward=0.0,
            backward=0.0,
            state_bytes=0,
            activation_bytes=0,
            sent=0,
            trains=bool(piece.trainable_variables),
        )
        for name, piece in zip(names, pieces, strict=True)
    ]


def _measured(piece: Any, name: str, rows: int, slots: float) -> LayerGroup:
    import tensorflow as tf

    states = [(variable, variable.numpy()) for variable in piece.non_trainable_variables]
    shape = (rows, *piece.inputs[0].shape[1:])
    x = tf.constant(np.random.default_rng(0).random(shape, np.float32))
    forward = tf.function(lambda x: piece(x, training=True), autograph=False)
    sizes: list[int] = []
    both = tf.function(lambda x: _both_ways(piece, x, sizes), autograph=False)
    times = [_median(function, x) for function in (forward, both)]
    for variable, value in states:
        variable.assign(value)
    weights = sum(int(np.prod(v.shape)) for v in piece.trainable_variables)
    frozen = sum(int(np.prod(v.shape)) for v in piece.non_trainable_variables)
    return LayerGroup(
        name=name,
        forward=times[0],
        backward=max(times[1] - times[0], 1e-9),
        state_bytes=4 * int((COPIES + slots) * weights + frozen),
        activation_bytes=sizes[0],
        sent=4 * rows * int(np.prod(piece.outputs[0].shape[1:])),
        trains=bool(weights),
        weights=4 * (weights + frozen),
    )


def _both_ways(piece: Any, x: Any, sizes: list[int]) -> list[Any]:
    """Compute a piece forward and backward; body of a compiled function, traced once."""
    import tensorflow as tf

    values = [variable.value for variable in piece.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = piece(x, training=True)
    graph = y.graph
    ahead = {operation.name for operation in graph.get_operations()}
    gradients = tape.gradient(y, [x, *values], output_gradients=tf.ones_like(y))
    sizes.append(_activation_bytes(graph, ahead))
    return [gradient for gradient in gradients if gradient is not None]


def _activation_bytes(graph: Any, ahead: set[str]) -> int:
    """Return the bytes of the forward pass's tensors that the backward pass reads."""
    # Weights and inputs are there in any case, and constants are part of the graph.
    elsewhere = ("Placeholder", "ReadVariableOp", "Const")
    activations = {
        tensor.name: tensor
        for operation in graph.get_operations()
        if operation.name not in ahead
        for tensor in operation.inputs
        if tensor.op.name in ahead and tensor.op.type not in elsewhere
    }
    sizes = (
        (tensor.shape.num_elements() or 0) * tensor.dtype.size
        for tensor in activations.values()
        if tensor.dtype.is_numpy_compatible
    )
    return int(sum(sizes))


def _median(function: Any, x: Any) -> float:
    seconds = []
    for _ in range(PASSES + 1):
        clock = time.perf_counter()
        # Until the numbers are there, whatever computes them.
        for tensor in _flat(function(x)):
            tensor.numpy()
        seconds.append(time.perf_counter() - clock)
    return statistics.median(seconds[1:])


def _flat(tensors: Any) -> list[Any]:
    import tensorflow as tf

    return [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(tensors)]


def _slots_per_weight(model: Any) -> float:
    """Return how many numbers the optimizer keeps for each weight."""
    weights = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    return sum(int(np.prod(v.shape)) for v in optimizer_slots(model)) / weights

"""The engine of a model with towers on several devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from distkeras_grid.engine.keras_model import model_variables, weight_layout
from distkeras_grid.engine.tensorflow import TensorFlowEngine
from distkeras_grid.model_parallel.device_group import (
    DeviceGroup,
    RemoteWeights,
    gather,
    places,
    scatter,
)
from distkeras_grid.model_parallel.rpc import Answer, Array
from distkeras_grid.model_parallel.tower_model import concatenate, standalone_copy
from distkeras_grid.records import WindowResult
from distkeras_grid.rows import RowBlock, aligned_empty
from distkeras_grid.weights import Vector


class _Calls:
    """The passes of the master's graph through the towers on other devices."""

    def __init__(self, group: DeviceGroup) -> None:
        self._group = group
        self._numbers = itertools.count(1)
        self._outputs: dict[int, list[Future[Answer]]] = {}

    def send(self, x: Array, *, training: bool) -> int:
        """Send an input to all towers; return the number of the pass."""
        number = next(self._numbers)
        # A copy: TensorFlow may reuse the memory before the array is sent.
        copy, options = np.array(x), {"number": number, "training": training}
        self._outputs[number] = [
            self._group.call(device, "forward", copy, **options)[0] for device in self._group.others
        ]
        return number

    def outputs(self, number: int) -> list[Array]:
        """Return the towers' outputs for the input of a pass."""
        answers = [self._group.result(future) for future in self._outputs.pop(number)]
        return [array for _, (array,) in answers]

    def send_gradients(self, number: int, gradients: Sequence[Array]) -> None:
        """Let each tower take its step, without waiting for the end of it."""
        for device, gradient in zip(self._group.others, gradients, strict=True):
            self._group.call(device, "backward", np.array(gradient), number=number)
            self._group.call(device, "step", answers=0)


def local_model(model: Any, towers: Sequence[Any], master: Any, group: DeviceGroup) -> Any:
    """Return the master's part of a model: its own tower, the others' outputs, and the rest."""
    import keras

    inputs = keras.Input(model.inputs[0].shape[1:])
    if len(towers) == 1:
        outputs = [towers[0](inputs)]
    else:
        send, collect = _layers(towers[1:], _Calls(group))
        x, call = send(inputs)
        first = towers[0](x)
        outputs = [first, *collect([call, first])]
    local = keras.Model(inputs, concatenate(outputs, master))
    local.compile_from_config(model.get_compile_config())
    return local


def _layers(others: Sequence[Any], calls: _Calls) -> tuple[Any, Any]:
    """Return the layers that send the input, and that collect the other towers' outputs."""
    import keras
    import tensorflow as tf

    shapes = [tower.outputs[0].shape for tower in others]

    class Send(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any, training: bool = False) -> tuple[Any, Any]:
            def send(array: Array) -> Any:
                return np.int64(calls.send(array, training=bool(training)))

            call = tf.numpy_function(send, [x], tf.int64)
            call.set_shape(())
            # The master's own tower begins after the others have received their input.
            with tf.control_dependencies([call]):
                return tf.identity(x), call

    class Collect(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> list[Any]:
            return list(tf.custom_gradient(_collect)(*inputs))

    def _collect(call: Any, own: Any) -> tuple[list[Any], Callable[..., Any]]:
        # This comes after the own tower, so that the tower does not wait for the only thread.
        with tf.control_dependencies([own]):
            outputs = tf.numpy_function(
                lambda number: calls.outputs(int(number)), [call], [tf.float32] * len(shapes)
            )
        # Outside a compiled call, a single result is not in a list.
        outputs = tf.nest.flatten(outputs)
        for tensor, shape in zip(outputs, shapes, strict=True):
            tensor.set_shape(shape)

        def gradients(*dys: Any) -> Any:
            def send(number: Any, *arrays: Array) -> Any:
                calls.send_gradients(int(number), arrays)
                return np.zeros((), np.float32)

            sent = tf.numpy_function(send, [call, *dys], tf.float32)
            with tf.control_dependencies([sent]):
                return None, tf.zeros_like(own)

        return outputs, gradients

    return Send(name="send"), Collect(name="collect")


class TowersEngine:
    """Trains the master's part, and keeps the vector of the whole model.

    The towers keep their own weights. These travel once per window: to the server, and from there
    to the next attempt if this one dies. All other attributes are those of the engine of the
    master's part.
    """

    def __init__(
        self, model: Any, towers: Sequence[Any], master: Any, group: DeviceGroup, **options: Any
    ) -> None:
        first, head = standalone_copy(towers[0]), standalone_copy(master)
        local = local_model(model, [first, *towers[1:]], head, group)
        self._inner = TensorFlowEngine(local, **{**options, "jit": False})
        self.layout = weight_layout(model)
        # Where the variables of the master's part are in the whole vector, in the part's order.
        where = {
            id(variable): place
            for copy, part in ((first, towers[0]), (head, master))
            for variable, place in zip(model_variables(copy).all, places(model, part), strict=True)
        }
        self._own = tuple(where[id(variable)] for variable in model_variables(local).all)
        self._others = RemoteWeights(group, [places(model, tower) for tower in towers[1:]])

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the engine of the master's part."""
        return getattr(self._inner, name)

    def warm_up(self, block: RowBlock) -> float:
        """Compile, and leave the weights of master and towers as they were; see `ModelEngine`."""
        before = self.weights()
        self._others.change()
        seconds = self._inner.warm_up(block)
        self._others.put(before)
        return seconds

    def run(self, before: Vector, blocks: Iterable[RowBlock], after: Vector) -> WindowResult:
        """Train one window; see `distkeras_grid.engine.base.Engine`."""
        own, result_part = (aligned_empty(self._inner.layout.size) for _ in range(2))
        np.copyto(own, gather(before, self._own))
        self._others.put(before)
        # The towers take steps during the window, also if it fails.
        self._others.change()
        result = self._inner.run(own, blocks, result_part)
        scatter(result_part, self._own, after)
        self._others.collect(after)
        return result

    def evaluate(self, weights: Vector, blocks: Iterable[RowBlock]) -> dict[str, float]:
        """Return loss and metrics of the whole model's weights on rows; see `Engine`."""
        self._others.put(weights)
        return self._inner.evaluate(gather(weights, self._own), blocks)

    def weights(self) -> Vector:
        """Return a copy of the whole model's weights as a flat vector."""
        vector = np.empty(self.layout.size, np.float32)
        scatter(self._inner.weights(), self._own, vector)
        self._others.collect(vector)
        return vector

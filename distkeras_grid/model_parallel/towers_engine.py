"""The master's part of a model with towers: the first tower, the others' outputs, and the rest.

It trains in Keras' own compiled ``train_step``. A layer sends its input to the other towers before
the master's own tower begins, and has their outputs after it; its gradient sends them theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distkeras_grid.engine.keras_model import model_variables
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.parts_engine import Places, places
from distkeras_grid.model_parallel.rpc import Answer, Array
from distkeras_grid.model_parallel.tower_model import concatenate, standalone_copy


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


class _AllTowers(keras.layers.Layer):  # type: ignore[misc]
    """The outputs of the master's own tower and of those on other devices.

    `shapes`: of the others' outputs.
    """

    def __init__(self, own: Any, shapes: Sequence[Any], calls: _Calls) -> None:
        super().__init__(name="all_towers")
        self._own, self._shapes, self._calls = own, list(shapes), calls

    def call(self, x: Any, training: bool = False) -> list[Any]:
        def send(array: Array) -> Any:
            return np.int64(self._calls.send(array, training=bool(training)))

        number = tf.numpy_function(send, [x], tf.int64)
        number.set_shape(())
        # The master's own tower begins after the others have received their input.
        with tf.control_dependencies([number]):
            own = self._own(tf.identity(x), training=training)
        return [own, *tf.custom_gradient(self._collect)(number, own)]

    def _collect(self, number: Any, own: Any) -> tuple[list[Any], Callable[..., Any]]:
        # This comes after the own tower, so that the tower does not wait for the only thread.
        with tf.control_dependencies([own]):
            outputs = tf.numpy_function(
                lambda number: self._calls.outputs(int(number)),
                [number],
                [tf.float32] * len(self._shapes),
            )
        # Outside a compiled call, a single result is not in a list.
        outputs = tf.nest.flatten(outputs)
        for tensor, shape in zip(outputs, self._shapes, strict=True):
            tensor.set_shape(shape)

        def gradients(*dys: Any) -> Any:
            def send(number: Any, *arrays: Array) -> Any:
                self._calls.send_gradients(int(number), arrays)
                return np.zeros((), np.float32)

            sent = tf.numpy_function(send, [number, *dys], tf.float32)
            with tf.control_dependencies([sent]):
                return None, tf.zeros_like(own)

        return outputs, gradients


def local_model(
    model: Any, towers: Sequence[Any], master: Any, group: DeviceGroup
) -> tuple[Any, Places]:
    """Return the master's part of a model, compiled, and where its weights are in the whole."""
    first, head = standalone_copy(towers[0]), standalone_copy(master)
    inputs = keras.Input(model.inputs[0].shape[1:])
    shapes = [tower.outputs[0].shape for tower in towers[1:]]
    outputs = _AllTowers(first, shapes, _Calls(group))(inputs) if shapes else [first(inputs)]
    local = keras.Model(inputs, concatenate(outputs, head))
    local.compile_from_config(model.get_compile_config())
    known = {
        id(variable): place
        for copy, part in ((first, towers[0]), (head, master))
        for variable, place in zip(model_variables(copy).all, places(model, part), strict=True)
    }
    return local, tuple(known[id(variable)] for variable in model_variables(local).all)

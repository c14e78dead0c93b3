"""The engine of a model with towers on several devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from distkeras_grid.engine.base import State
from distkeras_grid.engine.keras_model import weight_layout
from distkeras_grid.engine.tensorflow import TensorFlowEngine
from distkeras_grid.model_parallel.arithmetic import Array
from distkeras_grid.model_parallel.device_connection import Answer
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.messages import TowerBackward, TowerForward
from distkeras_grid.model_parallel.remote_parts import RemoteParts
from distkeras_grid.model_parallel.tower_model import concatenate, places, standalone_copy
from distkeras_grid.records import WindowResult
from distkeras_grid.rows import RowBlock, aligned_empty
from distkeras_grid.spec import LimitsSpec
from distkeras_grid.weights import Vector


class RemoteTowers(RemoteParts):
    """The towers on other devices, numbered from 1.

    `towers`: number of towers, without the master's own.
    """

    def __init__(self, members: DeviceGroup, towers: int, limits: LimitsSpec) -> None:
        super().__init__(members, towers, limits)
        self._numbers = itertools.count(1)
        self._outputs: dict[int, list[Future[Answer]]] = {}

    def send(self, x: Array, *, training: bool) -> int:
        """Send an input to all towers; return the number of the pass."""
        call = next(self._numbers)
        message = TowerForward(call=call, training=training)
        # A copy: TensorFlow may reuse the memory before the array is sent.
        self._outputs[call] = self._ask([message] * self._count, [np.array(x)])
        return call

    def outputs(self, call: int) -> list[Array]:
        """Return the towers' outputs for the input of a pass."""
        arrays = [self._array(future) for future in self._outputs.pop(call)]
        self._check_steps()
        return arrays

    def send_gradients(self, call: int, gradients: Sequence[Array]) -> None:
        """Let each tower take its step, without waiting for the end of it."""
        for number, gradient in enumerate(gradients, start=1):
            line = self._line(number)
            self._steps += line.ask(TowerBackward(call=call), [np.array(gradient)])


def local_model(model: Any, towers: Sequence[Any], master: Any, remote: RemoteTowers) -> Any:
    """Return the master's part of a model: its own tower, the others' outputs, and the rest."""
    import keras

    inputs = keras.Input(model.inputs[0].shape[1:])
    if len(towers) == 1:
        outputs = [towers[0](inputs)]
    else:
        send, collect = _layers(towers[1:], remote)
        x, call = send(inputs)
        first = towers[0](x)
        outputs = [first, *collect([call, first])]
    local = keras.Model(inputs, concatenate(outputs, master))
    local.compile_from_config(model.get_compile_config())
    return local


def _layers(others: Sequence[Any], remote: RemoteTowers) -> tuple[Any, Any]:
    """Return the layers that send the input, and that collect the other towers' outputs."""
    import keras
    import tensorflow as tf

    shapes = [tower.outputs[0].shape for tower in others]

    class Send(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any, training: bool = False) -> tuple[Any, Any]:
            def send(array: Array) -> Any:
                return np.int64(remote.send(array, training=bool(training)))

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
                lambda number: remote.outputs(int(number)), [call], [tf.float32] * len(shapes)
            )
        # Outside a compiled call, a single result is not in a list.
        outputs = tf.nest.flatten(outputs)
        for tensor, shape in zip(outputs, shapes, strict=True):
            tensor.set_shape(shape)

        def gradients(*dys: Any) -> Any:
            def send(number: Any, *arrays: Array) -> Any:
                remote.send_gradients(int(number), arrays)
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
    master's part. What needs the towers raises `ServerUnreachableError` if one of them is lost, and
    another attempt goes on from the last window.
    """

    def __init__(
        self,
        model: Any,
        towers: Sequence[Any],
        master: Any,
        remote: RemoteTowers,
        **options: Any,
    ) -> None:
        first, head = standalone_copy(towers[0]), standalone_copy(master)
        local = local_model(model, [first, *towers[1:]], head, remote)
        self._inner = TensorFlowEngine(local, **{**options, "jit": False})
        self._remote = remote
        self.layout = weight_layout(model)
        # Where each number of the master's own vector is in the whole one.
        self._own = np.empty(weight_layout(local).size, np.int64)
        for copy, part in ((first, towers[0]), (head, master)):
            self._own[places(local, copy)] = places(model, part)
        self._theirs = [places(model, tower) for tower in towers[1:]]
        # Key of the towers' state in the whole state; the engine's own keys are numbers.
        self._names = [f"tower {number}" for number in range(1, len(towers))]
        self._remote_weights: list[Vector] | None = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the engine of the master's part."""
        return getattr(self._inner, name)

    def warm_up(self, block: RowBlock) -> float:
        """Compile, and leave master and towers as they were; see `ModelEngine`."""
        with self._remote.translate_errors():
            parts = self._remote.fetch()
            seconds = self._inner.warm_up(block)
            self._remote.put(parts)
            self._remote.begin()
        self._remote.begin_training()
        self._remote_weights = parts
        return seconds

    def run(self, before: Vector, blocks: Iterable[RowBlock], after: Vector) -> WindowResult:
        """Train one window; see `distkeras_grid.engine.base.Engine`."""
        own, result_part = aligned_empty(self._own.size), aligned_empty(self._own.size)
        np.take(before, self._own, out=own, mode="clip")
        with self._remote.translate_errors():
            self._put([before[places] for places in self._theirs])
            # The towers take steps during the window, also if it fails.
            self._remote_weights = None
            result = self._inner.run(own, blocks, result_part)
            theirs = self._remote_weights = self._remote.fetch()
        after[self._own] = result_part
        for where, vector in zip(self._theirs, theirs, strict=True):
            after[where] = vector
        return result

    def evaluate(self, weights: Vector, blocks: Iterable[RowBlock]) -> dict[str, float]:
        """Return loss and metrics of the whole model's weights on rows; see `Engine`."""
        with self._remote.translate_errors():
            self._put([weights[places] for places in self._theirs])
            return self._inner.evaluate(weights[self._own], blocks)

    def set_schedule_offset(self, steps: int) -> None:
        """Let the schedules of master and towers go on after `steps` batches; see `Engine`."""
        self._inner.set_schedule_offset(steps)
        with self._remote.translate_errors():
            self._remote.set_schedule_offset(steps)

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate of the master and of all towers."""
        self._inner.set_learning_rate(value)
        with self._remote.translate_errors():
            self._remote.set_rate(value)

    def state(self) -> State:
        """Return copies of everything but the weights that master and towers change."""
        with self._remote.translate_errors():
            theirs = zip(self._names, self._remote.fetch_state(), strict=True)
        return {**self._inner.state(), **{name: np.array(packed) for name, packed in theirs}}

    def outcome(self) -> State:
        """Return nothing: no process has the whole model; see `ModelEngine`."""
        return {}

    def restore(self, state: State) -> None:
        """Go on from what `state` returned."""
        self._inner.restore(state)
        with self._remote.translate_errors():
            self._remote.put_state([state[name] for name in self._names])

    def weights(self) -> Vector:
        """Return a copy of the whole model's weights as a flat vector."""
        vector = np.empty(self.layout.size, np.float32)
        vector[self._own] = self._inner.weights()
        with self._remote.translate_errors():
            parts = self._remote.fetch()
        for where, theirs in zip(self._theirs, parts, strict=True):
            vector[where] = theirs
        return vector

    def _put(self, weights: list[Vector]) -> None:
        """Send the towers their weights, unless they have them already."""
        parts = self._remote_weights
        if parts is not None and all(map(np.array_equal, weights, parts)):
            return
        # What the towers hold is unknown until all have taken the weights.
        self._remote_weights = None
        self._remote.put(weights)
        self._remote_weights = weights

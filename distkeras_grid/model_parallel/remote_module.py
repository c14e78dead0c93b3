"""A part of a model on its own device: it keeps its weights, and takes its own steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.array_tree import Packed, pack, unpack
from distkeras_grid.engine.keras_model import counters, get_flat_weights, set_flat_weights
from distkeras_grid.engine.optimizers import follow_schedules_from
from distkeras_grid.model_parallel.rpc import Answers, Array
from distkeras_grid.weights import Vector
from distkeras_grid.worker.worker_state import check_same


class GradientSum:
    """The sum of the gradients of a batch's micro-batches.

    The gradient of the loss is already weighted by the rows of its micro-batch, so the sum is the
    gradient of the whole batch.
    """

    def __init__(self) -> None:
        self._sums: list[Any] | None = None

    def add(self, gradients: Sequence[Any]) -> None:
        """Add the gradients of a micro-batch; None for a variable on which nothing depends."""
        import tensorflow as tf

        sums = self._sums = self._sums or [None] * len(gradients)
        # One variable after the other: two whole sets of gradients are enough.
        for number, gradient in enumerate(gradients):
            if gradient is not None:
                dense = tf.convert_to_tensor(gradient)
                sums[number] = dense if sums[number] is None else sums[number] + dense

    def take(self) -> list[Any]:
        """Return the sum, and begin a new one."""
        sums, self._sums = self._sums, None
        return sums or []


class RemoteModule:
    """A tower, or a stage of a pipeline, for the calls of its master.

    The step is exact: no other device changes these weights, and the optimizer treats each variable
    by itself, so it needs no others. What the backward pass needs is kept for each pass that is
    open. The forward pass is not computed again, so dropout and counters see each row once.

    `first`: whether the input's gradient is not needed.
    """

    CALLS: ClassVar[frozenset[str]] = frozenset(
        {"forward", "backward", "step", "put", "get", "put_state", "get_state"}
        | {"set_rate", "set_schedule_offset"}
    )

    def __init__(
        self,
        model: Any,
        optimizer: dict[str, Any],
        custom_objects: Mapping[str, Any] | None = None,
        *,
        first: bool,
    ) -> None:
        import keras
        import tensorflow as tf

        self.model = model
        self._first = first
        self._variables = list(model.trainable_variables)
        self._offset = keras.Variable(0, dtype="int", name="schedule_offset")
        self._optimizer = keras.optimizers.deserialize(optimizer, dict(custom_objects or {}))
        self._optimizer.build(self._variables)
        follow_schedules_from(self._optimizer, self._offset)
        (tensor,) = model.inputs
        shape = tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype)
        self._train, self._infer = (
            tf.function(
                lambda x, training=training: model(x, training=training),
                input_signature=[shape],
                autograph=False,
            )
            for training in (True, False)
        )
        self._apply = tf.function(
            lambda gradients: self._optimizer.apply(gradients, self._variables), autograph=False
        )
        self._close_passes()

    def forward(self, x: Array, number: int, *, training: bool) -> Answers:
        """Return the output for an input; `number` of the pass, for which a gradient may follow."""
        import tensorflow as tf

        inputs = tf.constant(x)
        if not training:
            yield [np.asarray(self._infer(inputs))]
            return
        with tf.GradientTape() as tape:
            if not self._first:
                tape.watch(inputs)
            y = self._train(inputs)
        self._tapes[number] = tape, inputs, y
        yield [np.asarray(y)]

    def backward(self, dy: Array, number: int) -> Answers:
        """Add the gradients of a pass to their sum; return that of its input if it is needed."""
        import tensorflow as tf

        tape, x, y = self._tapes.pop(number)
        inputs = [] if self._first else [x]
        values = [variable.value for variable in self._variables]
        gradients = tape.gradient(y, [*inputs, *values], output_gradients=tf.constant(dy))
        self._gradients.add(gradients[len(inputs) :])
        yield [np.asarray(gradient) for gradient in gradients[: len(inputs)]]

    def step(self) -> Answers:
        """Take a step with the sum of the gradients; the next answer tells whether it failed."""
        self._apply(self._gradients.take())
        yield from ()

    def put(self, weights: Vector) -> Answers:
        """Go on with these weights."""
        set_flat_weights(self.model, weights)
        self._close_passes()
        yield []

    def get(self) -> Answers:
        """Return the weights, after all steps so far."""
        yield [get_flat_weights(self.model)]

    def get_state(self) -> Answers:
        """Return all that training changes but the weights, packed."""
        yield [pack(self._state())]

    def put_state(self, packed: Packed) -> Answers:
        """Go on with what `get_state` returned."""
        state = unpack(packed)
        check_same(self._state(), state)
        for number, variable in enumerate(self._changing()):
            variable.assign(state[str(number)])
        yield []

    def set_schedule_offset(self, steps: int) -> Answers:
        """Let schedules of the learning rate go on after this number of batches."""
        self._offset.assign(steps)
        yield []

    def set_rate(self, value: float) -> Answers:
        """Set the learning rate; the master has refused one beside a schedule."""
        self._optimizer.learning_rate = value
        yield []

    def _changing(self) -> list[Any]:
        return [*self._optimizer.variables, *counters(self.model), self._offset]

    def _state(self) -> dict[str, NDArray[Any]]:
        # Keras returns a scalar as a NumPy number, which is not an array.
        return {
            str(number): np.array(variable.numpy())
            for number, variable in enumerate(self._changing())
        }

    def _close_passes(self) -> None:
        self._tapes: dict[int, tuple[Any, Any, Any]] = {}
        self._gradients = GradientSum()

"""A stage on its own device: it keeps its weights, sums its gradients, and takes its own steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.model_parallel.arithmetic import Array
from distkeras_grid.model_parallel.duplex_channel import Duplex
from distkeras_grid.model_parallel.messages import (
    ForwardResult,
    InputGradient,
    StageBackward,
    StageStep,
    StepReply,
    TowerForward,
)
from distkeras_grid.model_parallel.remote_module import RemoteModule


class GradientSum:
    """The sum of the gradients of a batch's micro-batches.

    The gradient of the loss is already weighted by the rows of its micro-batch, so the sum is the
    gradient of the whole batch.
    """

    def __init__(self) -> None:
        self._sums: list[Any] | None = None

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Add the gradients of a micro-batch; None for a variable on which nothing depends."""
        import tensorflow as tf

        dense = (
            tf.zeros(variable.shape) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        )
        if self._sums is None:
            self._sums = list(dense)
            return
        # One variable after the other: two whole sets of gradients are enough.
        for number, gradient in enumerate(dense):
            self._sums[number] = self._sums[number] + gradient

    def take(self) -> list[Any]:
        """Return the sum, and begin a new one."""
        sums, self._sums = self._sums, None
        if sums is None:
            raise RemoteProtocolError("A step needs gradients. Received: none since the last step.")
        return sums


class StageComputer(RemoteModule):
    """Answers the master's requests with a stage.

    It keeps what the backward pass needs for each micro-batch in flight. It does not compute the
    forward pass again, so dropout and counters see each row once.
    """

    def __init__(
        self,
        model: Any,
        optimizer: dict[str, Any],
        custom_objects: Mapping[str, Any] | None = None,
        *,
        first: bool,
    ) -> None:
        self._first = first
        super().__init__(model, optimizer, custom_objects)

    def _passed(self, message: msgspec.Struct, arrays: list[Array], duplex: Duplex) -> bool:
        clock = time.perf_counter()
        match message, arrays:
            case TowerForward(), [x]:
                y = self._forward(message, x)
                duplex.send(ForwardResult(seconds=time.perf_counter() - clock), [y])
            case StageBackward(), [dy]:
                dx = self._backward(message, dy)
                duplex.send(InputGradient(seconds=time.perf_counter() - clock), dx)
            case StageStep(), []:
                self._apply(self._gradients.take())
                duplex.send(StepReply(seconds=time.perf_counter() - clock))
            case _:
                return False
        return True

    def _begin(self) -> None:
        super()._begin()
        self._tapes: dict[int, tuple[Any, Any, Any]] = {}
        self._gradients = GradientSum()

    def _forward(self, message: TowerForward, x: Array) -> Array:
        import tensorflow as tf

        inputs = tf.constant(x)
        if not message.training:
            return np.asarray(self._infer(inputs))
        with tf.GradientTape() as tape:
            if not self._first:
                tape.watch(inputs)
            y = self._train(inputs)
        self._tapes[message.call] = tape, inputs, y
        return np.asarray(y)

    def _backward(self, message: StageBackward, dy: Array) -> list[Array]:
        import tensorflow as tf

        if message.call not in self._tapes:
            raise RemoteProtocolError(f"No pass of the training is open. Received: {message!r}.")
        tape, x, y = self._tapes.pop(message.call)
        inputs = [] if self._first else [x]
        values = [variable.value for variable in self._variables]
        gradients = tape.gradient(y, [*inputs, *values], output_gradients=tf.constant(dy))
        self._gradients.add(gradients[len(inputs) :], self._variables)
        return [np.asarray(gradient) for gradient in gradients[: len(inputs)]]

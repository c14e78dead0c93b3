"""A tower on its own device: it keeps its weights, and takes its own steps."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.model_parallel.arithmetic import Array
from distkeras_grid.model_parallel.duplex_channel import Duplex
from distkeras_grid.model_parallel.messages import (
    ForwardResult,
    StepReply,
    TowerBackward,
    TowerForward,
)
from distkeras_grid.model_parallel.remote_module import RemoteModule


class TowerComputer(RemoteModule):
    """Answers the master's requests with a tower, which takes a step with each gradient."""

    _tape: tuple[int, Any, Any] | None = None

    def _passed(self, message: msgspec.Struct, arrays: list[Array], duplex: Duplex) -> bool:
        clock = time.perf_counter()
        match message, arrays:
            case TowerForward(), [x]:
                y = self._forward(message, x)
                duplex.send(ForwardResult(seconds=time.perf_counter() - clock), [y])
            case TowerBackward(), [dy]:
                self._backward(message, dy)
                duplex.send(StepReply(seconds=time.perf_counter() - clock))
            case _:
                return False
        return True

    def _forward(self, message: TowerForward, x: Array) -> Array:
        import tensorflow as tf

        if not message.training:
            return np.asarray(self._infer(tf.constant(x)))
        with tf.GradientTape() as tape:
            y = self._train(tf.constant(x))
        self._tape = message.call, tape, y
        return np.asarray(y)

    def _backward(self, message: TowerBackward, dy: Array) -> None:
        import tensorflow as tf

        if self._tape is None or self._tape[0] != message.call:
            raise RemoteProtocolError(f"No pass of the training is open. Received: {message!r}.")
        (_, tape, y), self._tape = self._tape, None
        values = [variable.value for variable in self._variables]
        self._apply(tape.gradient(y, values, output_gradients=tf.constant(dy)))

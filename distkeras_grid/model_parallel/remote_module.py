"""A part of a model that is trained where it is: it keeps its weights, and takes its own steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distkeras_grid.array_tree import pack, unpack
from distkeras_grid.engine.keras_model import get_flat_weights, set_flat_weights
from distkeras_grid.engine.optimizers import follow_schedules_from, has_own_rate
from distkeras_grid.errors import ConfigurationError, RemoteProtocolError
from distkeras_grid.model_parallel.arithmetic import Array
from distkeras_grid.model_parallel.duplex_channel import Duplex
from distkeras_grid.model_parallel.messages import (
    Acknowledgement,
    DeviceScheduleOffset,
    FetchWeights,
    ForwardResult,
    GetDeviceState,
    PutState,
    PutWeights,
    SetRate,
    StartDevice,
    TowerState,
)
from distkeras_grid.parameter_server.packed_bytes import as_bytes, as_numbers
from distkeras_grid.worker.worker_state import check_same


class RemoteModule(ABC):
    """Answers the master's requests with a part of the model and an optimizer of its own.

    The step is exact: no other device changes these weights, and the optimizer treats each variable
    by itself, so it needs no others.
    """

    def __init__(
        self,
        model: Any,
        optimizer: dict[str, Any],
        custom_objects: Mapping[str, Any] | None = None,
    ) -> None:
        import keras
        import tensorflow as tf

        self.model = model
        self._variables = list(model.trainable_variables)
        self._config = optimizer
        self._objects = dict(custom_objects or {})
        self._offset = keras.Variable(0, dtype="int", name="schedule_offset")
        # A learning rate set by a callback is kept, also by a new optimizer.
        self._rate: float | None = None
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
        # Random generators and counters as the model was loaded.
        self._others = [
            (variable, variable.numpy())
            for variable in model.variables
            if not str(variable.dtype).startswith(("float", "bfloat"))
        ]
        self._begin()

    def answer(self, message: msgspec.Struct, arrays: list[Array], duplex: Duplex) -> None:
        """Compute, and send the results."""
        if self._passed(message, arrays, duplex):
            return
        match message, arrays:
            case PutWeights(), [weights]:
                set_flat_weights(self.model, weights)
                duplex.send(Acknowledgement())
            case StartDevice(), []:
                self._begin()
                duplex.send(Acknowledgement())
            case DeviceScheduleOffset(), []:
                self._offset.assign(message.steps)
                duplex.send(Acknowledgement())
            case PutState(), [payload]:
                self._restore(unpack(as_bytes(payload, message.size)))
                duplex.send(Acknowledgement())
            case GetDeviceState(), []:
                packed = pack(self._state())
                duplex.send(TowerState(size=packed.size), [as_numbers(packed)])
            case SetRate(), []:
                self._set_rate(message.value)
                duplex.send(Acknowledgement())
            case FetchWeights(), []:
                duplex.send(ForwardResult(seconds=0.0), [get_flat_weights(self.model)])
            case _:
                raise RemoteProtocolError(
                    f"A request for a {type(self).__name__} is expected. Received: {message!r} "
                    f"with {len(arrays)} arrays."
                )

    @abstractmethod
    def _passed(self, message: msgspec.Struct, arrays: list[Array], duplex: Duplex) -> bool:
        """Compute a pass or take a step, and answer; return whether the message asked for one."""

    def _state(self) -> dict[str, NDArray[Any]]:
        """Return copies of everything but the weights that training changes."""
        variables = [*self._optimizer.variables, *(v for v, _ in self._others), self._offset]
        # Keras returns a scalar as a NumPy number, which is not an array.
        return {
            str(number): np.array(variable.numpy()) for number, variable in enumerate(variables)
        }

    def _restore(self, state: dict[str, Any]) -> None:
        check_same(self._state(), state)
        variables = [*self._optimizer.variables, *(v for v, _ in self._others), self._offset]
        for number, variable in enumerate(variables):
            variable.assign(state[str(number)])

    def _set_rate(self, value: float) -> None:
        if not has_own_rate(self._optimizer):
            raise ConfigurationError(
                "The optimizer's learning rate follows a schedule, so it cannot be set. "
                f"Received: {value!r}."
            )
        self._optimizer.learning_rate = self._rate = value

    def _begin(self) -> None:
        """Start with a new optimizer, and with the random numbers of the model as it was loaded."""
        import keras
        import tensorflow as tf

        for variable, value in self._others:
            variable.assign(value)
        self._offset.assign(0)
        self._optimizer = keras.optimizers.deserialize(self._config, self._objects)
        self._optimizer.build(self._variables)
        follow_schedules_from(self._optimizer, self._offset)
        if self._rate is not None:
            self._optimizer.learning_rate = self._rate
        optimizer, variables = self._optimizer, self._variables
        self._apply = tf.function(
            lambda gradients: optimizer.apply(gradients, variables), autograph=False
        )

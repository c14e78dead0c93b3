"""The parts of a model on other devices: their weights, their states, and their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import msgspec

from distkeras_grid.array_tree import Packed
from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.model_parallel.arithmetic import Array
from distkeras_grid.model_parallel.device_connection import Answer, DeviceConnection
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.messages import (
    DeviceScheduleOffset,
    FetchWeights,
    GetDeviceState,
    PutState,
    PutWeights,
    SetRate,
    StartDevice,
    TowerState,
)
from distkeras_grid.parameter_server.packed_bytes import as_bytes, as_numbers
from distkeras_grid.spec import LimitsSpec
from distkeras_grid.weights import Vector


class RemoteParts:
    """The parts on other devices, numbered from 1; each is a `RemoteModule`.

    `count`: number of parts, without the master's own.
    """

    def __init__(self, members: DeviceGroup, count: int, limits: LimitsSpec) -> None:
        self._members = members
        self._count = count
        self._limits = limits
        self._trains = False
        self._steps: list[Future[Answer]] = []
        self._broken = False

    @property
    def lost(self) -> bool:
        """Whether a device was lost or too late, also if it is there again."""
        return self._broken or self._members.lost

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise what ends the attempt, if a device is lost within the context."""
        import tensorflow as tf

        try:
            yield
        # TensorFlow wraps the error of a Python function that it has called in one of its own.
        except (OSError, tf.errors.OpError) as error:
            if not self.lost:
                raise
            raise ServerUnreachableError(
                "The device of a part of the model is lost, and its steps since the last window "
                f"with it. Received: {error}. Another attempt goes on from that window."
            ) from error

    def begin_training(self) -> None:
        """Give answers the time of the training from now on; all parts are compiled."""
        self._trains = True

    def put(self, weights: Sequence[Vector]) -> None:
        """Let the parts go on with these weights."""
        self._tell_each([(PutWeights(), [vector]) for vector in weights])

    def begin(self) -> None:
        """Let the parts begin with new optimizers."""
        self._tell_each([(StartDevice(), [])] * self._count)

    def set_schedule_offset(self, steps: int) -> None:
        """Let schedules of the parts' learning rates go on after so many batches."""
        self._tell_each([(DeviceScheduleOffset(steps=steps), [])] * self._count)

    def put_state(self, states: Sequence[Packed]) -> None:
        """Let the parts go on with what `fetch_state` returned."""
        self._tell_each([(PutState(size=s.size), [as_numbers(s)]) for s in states])

    def fetch_state(self) -> list[Packed]:
        """Return all that the parts change besides their weights, packed."""
        replies = [
            self._result(future) for future in self._ask([GetDeviceState()] * self._count, [])
        ]
        return [
            as_bytes(array, message.size)
            for message, (array,) in replies
            if isinstance(message, TowerState)
        ]

    def fetch(self) -> list[Vector]:
        """Return the weights of all parts, after all steps so far."""
        futures = self._ask([FetchWeights()] * self._count, [])
        self._check_steps()
        return [self._array(future) for future in futures]

    def set_rate(self, value: float) -> None:
        """Set the learning rate of all parts."""
        self._tell_each([(SetRate(value=value), [])] * self._count)

    def _tell_each(self, requests: Sequence[tuple[msgspec.Struct, list[Array]]]) -> None:
        """Send each tower its request, and wait until all are done."""
        asked = [
            self._line(number).ask(*request)[0] for number, request in enumerate(requests, start=1)
        ]
        for future in asked:
            self._result(future)

    def _ask(
        self, messages: Sequence[msgspec.Struct], arrays: Sequence[Array]
    ) -> list[Future[Answer]]:
        return [
            self._line(number).ask(message, arrays)[0]
            for number, message in enumerate(messages, start=1)
        ]

    def _line(self, number: int) -> DeviceConnection:
        with self._noticing():
            return self._members.line(number)

    def _result(self, future: Future[Answer]) -> Answer:
        with self._noticing():
            try:
                return future.result(self._seconds)
            except TimeoutError:
                raise self._late() from None

    @property
    def _seconds(self) -> float | None:
        """How long a device may take for an answer [s]; None for no limit."""
        return self._limits.round_timeout if self._trains else self._limits.start_timeout

    def _late(self) -> TimeoutError:
        """Drop the devices that owe an answer, and return the error that names them."""
        limit = "round_timeout" if self._trains else "start_timeout"
        why = f"it has not answered for {self._seconds:g} s ({limit})"
        late = ", ".join(map(str, self._members.disconnect_late(why)))
        return TimeoutError(f"device {late or 'unknown'}: {why}")

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Remember that a device is lost: `DeviceGroup` may learn of it later than this thread."""
        try:
            yield
        except OSError:
            self._broken = True
            raise

    def _check_steps(self) -> None:
        """Raise the error of a step that failed."""
        done, self._steps = self._steps, []
        for future in done:
            self._result(future)

    def _array(self, future: Future[Answer]) -> Array:
        _, (array,) = self._result(future)
        return array

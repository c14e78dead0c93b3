"""The devices of a model's master, and its engine while they are there.

A device that is lost ends the attempt of all: the whole group is started again, and goes on from
the last window that the server has. An error that would occur again ends the run.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.base import State
from distkeras_grid.errors import (
    GridError,
    ServerUnreachableError,
    StartTimeoutError,
    WorkerFailedError,
)
from distkeras_grid.model_parallel.rpc import Answer, Array, Device, LocalDevice, Module
from distkeras_grid.model_parallel.wire import ArrayChannel
from distkeras_grid.spec import LimitsSpec
from distkeras_grid.weights import Vector


class DeviceGroup:
    """The devices of an attempt, numbered from 1; a context manager, which releases them.

    `count`: number of tasks, the master included.
    """

    def __init__(self, count: int, limits: LimitsSpec) -> None:
        self.count = count
        self._limits = limits
        self._changed = threading.Condition()
        self._devices: dict[int, Device | LocalDevice] = {}
        self._first = 1
        self._trains = False
        self._moved = 0
        self.lost: str | None = None
        self._final = False

    def __enter__(self) -> DeviceGroup:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self.release(error)

    def release(self, error: BaseException | None = None) -> None:
        """Let all devices end: the master needs them no more, or has failed."""
        with self._changed:
            devices, self._devices = self._devices.values(), {}
        for device in devices:
            device.release(error)
            self._moved += device.moved

    @property
    def others(self) -> range:
        """Numbers of the devices, without the master's."""
        return range(1, self.count)

    @property
    def parts(self) -> range:
        """Numbers of the devices, with the master's if it has a module itself; see `host`."""
        return range(self._first, self.count)

    def host(self, module: Module) -> None:
        """Let the master's process compute for itself, too, as number 0."""
        self._devices[0], self._first = LocalDevice(module), 0

    @property
    def moved(self) -> int:
        """Bytes to and from all devices so far."""
        return self._moved + sum(device.moved for device in self._devices.values())

    @property
    def seconds(self) -> float | None:
        """How long a device may take for an answer [s]; None for no limit."""
        return self._limits.round_timeout if self._trains else self._limits.start_timeout

    def admit(self, number: int, channel: ArrayChannel) -> None:
        """Take a device in, once."""
        with self._changed:
            if number not in self.others or number in self._devices:
                channel.close()
                return
            self._devices[number] = Device(number, channel, self._lose)
            self._changed.notify_all()

    def wait_for_all(self) -> None:
        """Wait until all devices are connected."""
        limit = self._limits.start_timeout
        with self._changed:
            if self._changed.wait_for(lambda: len(self._devices) + 1 == self.count, limit):
                return
            missing = [number for number in self.others if number not in self._devices]
        raise StartTimeoutError(
            f"The master has waited {limit:g} s for {self.count - 1} devices. Missing: {missing}. "
            "Look at their tasks, or allow more (start_timeout)."
        )

    def begin_training(self) -> None:
        """Give answers the time of the training from now on; all devices have compiled."""
        self._trains = True

    def call(
        self, device: int, method: str, /, *arrays: NDArray[Any], answers: int = 1, **values: Any
    ) -> list[Future[Answer]]:
        """Call a method of a device's module; return its answers."""
        return self._devices[device].call(method, arrays, values, answers)

    def each(
        self, method: str, arrays: Sequence[NDArray[Any]] | None = None, **values: Any
    ) -> list[list[Any]]:
        """Call a method of all modules, each with its array; return the arrays of each answer."""
        own: list[tuple[NDArray[Any], ...]] = [()] * len(self.parts)
        if arrays is not None:
            own = [(array,) for array in arrays]
        futures = []
        for number, each in zip(self.parts, own, strict=True):
            futures += self.call(number, method, *each, **values)
        return [self.result(future)[1] for future in futures]

    def result(self, future: Future[Answer]) -> Answer:
        """Wait for an answer."""
        try:
            return future.result(self.seconds)
        except TimeoutError:
            raise self.late() from None
        except ConnectionError as error:
            raise self._ended(error) from error

    def late(self) -> GridError:
        """Drop the devices that owe an answer, and return the error that names them."""
        limit = "round_timeout" if self._trains else "start_timeout"
        why = f"no answer for {self.seconds:g} s ({limit})"
        for device in list(self._devices.values()):
            if isinstance(device, Device) and device.waits:
                device.drop(why)
        return self._ended(TimeoutError(why))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raise what ends the attempt, if a device is lost within the context."""
        import tensorflow as tf

        try:
            yield
        # TensorFlow wraps the error of a Python function that it has called in one of its own.
        except (OSError, tf.errors.OpError) as error:
            if self.lost is None:
                raise
            raise self._ended(error) from error

    def _ended(self, error: Exception) -> GridError:
        if self._final:
            return WorkerFailedError(self.lost)
        return ServerUnreachableError(
            f"{self.lost or error} Its steps since the last window are lost with it; another "
            "attempt goes on from that window."
        )

    def _lose(self, device: Device, why: str, final: bool) -> None:
        with self._changed:
            if self._devices.get(device.number) is device and self.lost is None:
                how = "has failed" if final else "is lost"
                self.lost, self._final = f"Device {device.number} {how}: {why}.", final


class GroupEngine:
    """The engine of a master: that of its own part, with the states of its devices.

    `names`: of the parts on the devices, if they keep weights and take steps; see `RemoteModule`.
    All other attributes are those of the engine of the master's part.
    """

    def __init__(self, engine: Any, group: DeviceGroup, names: Sequence[str] = ()) -> None:
        self._engine, self._group, self._names = engine, group, names

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the engine; a method raises what ends the attempt."""
        attribute = getattr(self._engine, name)
        if not callable(attribute):
            return attribute

        def method(*arguments: Any, **options: Any) -> Any:
            with self._group.watched():
                return attribute(*arguments, **options)

        return method

    def warm_up(self, *arguments: Any) -> float:
        """Compile on all devices, and leave their states as they were; see `KerasEngine`."""
        states = self._each("get_state")
        with self._group.watched():
            seconds: float = self._engine.warm_up(*arguments)
        self._each("put_state", [packed for (packed,) in states])
        self._group.begin_training()
        return seconds

    def set_schedule_offset(self, steps: int) -> None:
        """Let the schedules of all parts go on after `steps` batches; see `Engine`."""
        self._engine.set_schedule_offset(steps)
        self._each("set_schedule_offset", steps=steps)

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate of all parts."""
        self._engine.set_learning_rate(value)
        self._each("set_rate", value=value)

    def state(self) -> State:
        """Return copies of everything but the weights that training changes."""
        states = self._each("get_state")
        return {
            **self._engine.state(),
            **{name: packed for name, (packed,) in zip(self._names, states, strict=True)},
        }

    def restore(self, state: State) -> None:
        """Go on from what `state` returned."""
        self._engine.restore(state)
        self._each("put_state", [np.asarray(state[name]) for name in self._names])

    def outcome(self) -> State:
        """Return the engine's outcome; nothing where no process has the whole model."""
        outcome: State = {} if self._names else self._engine.outcome()
        return outcome

    def _each(self, method: str, *arrays: Any, **values: Any) -> list[list[Any]]:
        return self._group.each(method, *arrays, **values) if self._names else []


#: Where a part's variables are in the whole vector, ``(start, stop)`` for each.
Places = tuple[tuple[int, int], ...]


def places(model: Any, part: Any) -> Places:
    """Return where the weights of a part are in the flat vector of the whole model."""
    from itertools import pairwise

    from distkeras_grid.engine.keras_model import model_variables, weight_layout

    sizes = [variable.size for variable in weight_layout(model).variables]
    bounds = pairwise(np.cumsum([0, *sizes]).tolist())
    known: Mapping[int, tuple[int, int]] = {
        id(variable): bound
        for variable, bound in zip(model_variables(model).all, bounds, strict=True)
    }
    return tuple(known[id(variable)] for variable in model_variables(part).all)


def gather(vector: Vector, places: Places) -> Vector:
    """Return a part's own vector from the whole one.

    Examples
    --------
    >>> gather(np.arange(6, dtype=np.float32), ((4, 6), (0, 1))).tolist()
    [4.0, 5.0, 0.0]
    """
    parts: list[Array] = [vector[start:stop] for start, stop in places]
    return np.concatenate(parts)


def scatter(part: Vector, places: Places, vector: Vector) -> None:
    """Write a part's own vector into the whole one.

    Examples
    --------
    >>> vector = np.zeros(6, np.float32)
    >>> scatter(np.array([4, 5, 1], np.float32), ((4, 6), (0, 1)), vector)
    >>> vector.tolist()
    [1.0, 0.0, 0.0, 0.0, 4.0, 5.0]
    """
    begin = 0
    for start, stop in places:
        vector[start:stop] = part[begin : begin + stop - start]
        begin += stop - start


class RemoteWeights:
    """The weights of the parts on devices, which travel once per window.

    `places`: where those of each part are in the whole vector.
    """

    def __init__(self, group: DeviceGroup, places: Sequence[Places]) -> None:
        self._group, self._places = group, places
        # Of what the devices have, digests: copies would be as large as the model.
        self._digests: list[bytes] = []

    def put(self, vector: Vector) -> None:
        """Send the devices their weights, unless they have them already."""
        parts = [gather(vector, places) for places in self._places]
        digests = list(map(_digest, parts))
        if digests != self._digests:
            self._group.each("put", parts)
            self._digests = digests

    def change(self) -> None:
        """Note that the devices take steps from now on."""
        self._digests = []

    def collect(self, vector: Vector) -> None:
        """Write the weights of the devices into the whole vector."""
        parts = [part for (part,) in self._group.each("get")]
        self._digests = list(map(_digest, parts))
        for part, places in zip(parts, self._places, strict=True):
            scatter(part, places, vector)


def _digest(part: Vector) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(part).data).digest()

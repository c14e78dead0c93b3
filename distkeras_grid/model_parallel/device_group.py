"""The devices of a model's master, and its engine while they are there.

A device that is lost ends the attempt of all: the whole group is started again, and goes on from
the last window that the server has. An error that would occur again ends the run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from distkeras_grid.errors import (
    GridError,
    ServerUnreachableError,
    StartTimeoutError,
    WorkerFailedError,
)
from distkeras_grid.model_parallel.rpc import Answer, Device
from distkeras_grid.model_parallel.wire import ArrayChannel
from distkeras_grid.rows import RowBlock
from distkeras_grid.spec import LimitsSpec


class DeviceGroup:
    """The devices of an attempt, numbered from 1; a context manager, which releases them.

    `count`: number of tasks, the master included.
    """

    def __init__(self, count: int, limits: LimitsSpec) -> None:
        self.count = count
        self._limits = limits
        self._changed = threading.Condition()
        self._devices: dict[int, Device] = {}
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
        """Call a method of all devices, each with its array; return the arrays of each answer."""
        futures = []
        for number in self.others:
            own = () if arrays is None else (arrays[number - 1],)
            futures += self.call(number, method, *own, **values)
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
        for device in [each for each in self._devices.values() if each.waits]:
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
    """The engine of a master whose devices may be lost; its attributes are those of `engine`."""

    def __init__(self, engine: Any, group: DeviceGroup) -> None:
        self._engine, self._group = engine, group

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the engine; a method raises what ends the attempt."""
        attribute = getattr(self._engine, name)
        if not callable(attribute):
            return attribute

        def method(*arguments: Any, **options: Any) -> Any:
            with self._group.watched():
                return attribute(*arguments, **options)

        return method

    def warm_up(self, block: RowBlock) -> float:
        """Compile on all devices; see `KerasEngine`."""
        with self._group.watched():
            seconds: float = self._engine.warm_up(block)
        self._group.begin_training()
        return seconds

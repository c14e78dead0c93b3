"""The master's end of its connection to one device."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias

import msgspec

from distkeras_grid.model_parallel.arithmetic import Array
from distkeras_grid.model_parallel.duplex_channel import Duplex
from distkeras_grid.model_parallel.messages import DeviceFailure, FinishDevice
from distkeras_grid.parameter_server.array_channel import ArrayChannel

#: A message and the arrays that followed it.
Answer: TypeAlias = tuple[msgspec.Struct, list[Array]]

FINISH_SECONDS = 5.0


class DeviceConnection:
    """Requests to a device and its answers, which come in the order of the requests."""

    def __init__(
        self, number: int, channel: ArrayChannel, ended: Callable[[DeviceConnection, str], None]
    ) -> None:
        self.number = number
        self._waiting: deque[Future[Answer]] = deque()
        self._lock = threading.Lock()
        self._why: str | None = None
        self._on_end = ended
        self._duplex = Duplex(channel, self._took, self._ended)
        self._duplex.start()

    @property
    def moved(self) -> int:
        """Bytes moved in both directions so far."""
        return self._duplex.moved

    @property
    def waits(self) -> bool:
        """Whether the device owes an answer."""
        with self._lock:
            return bool(self._waiting)

    def ask(
        self, message: msgspec.Struct, arrays: Sequence[Array], answers: int = 1
    ) -> list[Future[Answer]]:
        """Send a request; return its answers, which fail with `ConnectionError` if the line ends.

        `arrays`: the arrays that follow. They must not change before the first answer.
        """
        futures: list[Future[Answer]] = [Future() for _ in range(answers)]
        with self._lock:
            if self._why is not None:
                for future in futures:
                    future.set_exception(ConnectionResetError(self._why))
                return futures
            self._waiting.extend(futures)
            self._duplex.send(message, arrays)
        return futures

    def drop(self, why: str) -> None:
        """End the line at once, because the device is late or broke the protocol."""
        self._end(why)
        self._duplex.close()

    def finish(self) -> None:
        """Tell the device that nothing more comes."""
        self._duplex.send(FinishDevice())
        self._duplex.finish(FINISH_SECONDS)

    def _took(self, message: msgspec.Struct, arrays: list[Array]) -> None:
        if isinstance(message, DeviceFailure):
            self.drop(f"{message.error}: {message.message}")
            return
        with self._lock:
            future = self._waiting.popleft() if self._waiting else None
        if future is None:
            self.drop(f"it sent a {type(message).__name__} that nobody had asked for")
        else:
            future.set_result((message, arrays))

    def _ended(self, error: Exception | None) -> None:
        self._end("it has closed its connection" if error is None else str(error))

    def _end(self, why: str) -> None:
        with self._lock:
            first, self._why = self._why is None, self._why or why
            waiting, self._waiting = list(self._waiting), deque()
        for future in waiting:
            future.set_exception(ConnectionResetError(why))
        if first:
            self._on_end(self, why)

"""Calls of a master to its devices, which compute one after the other and answer in that order.

A device computes with a module: an object whose methods named in ``CALLS`` take the arrays and the
values of a call, and yield the arrays of each answer.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import RemoteProtocolError, ServerUnreachableError
from distkeras_grid.model_parallel.wire import BROKEN, ArrayChannel, Call
from distkeras_grid.parameter_server.messages import LONGEST_FAILURE
from distkeras_grid.parameter_server.timeouts import STALL_SECONDS
from distkeras_grid.worker.task import MAY_HEAL

#: float32
Array: TypeAlias = NDArray[np.float32]
#: Seconds of computing, and what was computed.
Answer: TypeAlias = tuple[float, list[Any]]
#: Arrays of the answers to a call, one after the other.
Answers: TypeAlias = Iterator[Sequence[NDArray[Any]]]

#: Names of what is no call of a method.
ANSWER, FAILURE, RELEASE = "answer", "failure", "release"
#: Seconds to send the last calls or answers.
FINISH_SECONDS = 5.0


class Duplex:
    """A channel with one thread per direction, so that neither direction waits for the other.

    `on_end`: called once when nothing more comes: with the error that ended the connection, or None
    if the other end has closed it.
    """

    def __init__(
        self,
        channel: ArrayChannel,
        on_call: Callable[[Call], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self._channel, self._on_call, self._on_end = channel, on_call, on_end
        self._outbox: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._receiver = threading.Thread(target=self._receive, daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self._sender.start()
        self._receiver.start()

    @property
    def moved(self) -> int:
        """Bytes in both directions so far."""
        return self._channel.moved

    def send(
        self, name: str, values: Mapping[str, Any], arrays: Sequence[NDArray[Any]] = ()
    ) -> None:
        """Send a call after those before it; return at once. Its arrays must not change."""
        self._outbox.put(Call(name, values, list(arrays)))

    def close(self) -> None:
        """End the connection at once."""
        self._outbox.put(None)
        self._channel.interrupt()

    def finish(self) -> None:
        """End the connection when everything is sent, or after some seconds."""
        self._outbox.put(None)
        self._sender.join(FINISH_SECONDS)
        self._channel.interrupt()

    def _send(self) -> None:
        try:
            while (call := self._outbox.get()) is not None:
                self._channel.send(*call)
        except BROKEN as error:
            self._error = error
            # The receiving thread notices it too, and calls `on_end`. If the other end has closed
            # the connection, that thread first reads what was sent before, such as the reason.
            if not isinstance(error, ConnectionError):
                self._channel.interrupt()

    def _receive(self) -> None:
        error: Exception | None = None
        try:
            while (call := self._channel.receive(None)) is not None:
                self._on_call(call)
        except BROKEN as broken:
            error = broken
        self.close()
        # The channel may be closed only when no other thread uses it.
        self._sender.join(STALL_SECONDS)
        with contextlib.suppress(OSError):
            self._channel.close()
        self._on_end(self._error or error)


class Device:
    """The master's end of its connection to one device.

    `on_loss`: called once, with why, and whether another attempt would fail likewise.
    """

    def __init__(
        self, number: int, channel: ArrayChannel, on_loss: Callable[[Device, str, bool], None]
    ) -> None:
        self.number = number
        self._waiting: deque[Future[Answer]] = deque()
        self._lock = threading.Lock()
        self._why: str | None = None
        self._on_loss = on_loss
        self._duplex = Duplex(channel, self._take, self._ended)
        self._duplex.start()

    @property
    def moved(self) -> int:
        """Bytes in both directions so far."""
        return self._duplex.moved

    @property
    def waits(self) -> bool:
        """Whether the device owes an answer."""
        with self._lock:
            return bool(self._waiting)

    def call(
        self, name: str, arrays: Sequence[NDArray[Any]], values: Mapping[str, Any], answers: int
    ) -> list[Future[Answer]]:
        """Call a method of the device's module; return its answers.

        They fail with `ConnectionError` if the connection ends. The arrays must not change before.
        """
        futures: list[Future[Answer]] = [Future() for _ in range(answers)]
        with self._lock:
            if self._why is None:
                self._waiting.extend(futures)
                self._duplex.send(name, values, arrays)
                return futures
        for future in futures:
            future.set_exception(ConnectionResetError(self._why))
        return futures

    def drop(self, why: str, *, final: bool = False) -> None:
        """End the connection at once, because the device is late, failed or broke the protocol."""
        self._lose(why, final=final)
        self._duplex.close()

    def release(self, error: BaseException | None = None) -> None:
        """Let the device end; with an error, because the master's attempt has failed."""
        self._duplex.send(*((RELEASE, {}) if error is None else _failure(error)))
        self._duplex.finish()

    def _take(self, call: Call) -> None:
        if call.name == FAILURE:
            self.drop(_text(call), final=bool(call.values.get("final")))
            return
        with self._lock:
            future = self._waiting.popleft() if self._waiting else None
        if future is None or call.name != ANSWER:
            self.drop(f"it sent {call.name!r}, for which nobody had asked")
            return
        future.set_result((float(call.values.get("seconds", 0.0)), call.arrays))

    def _ended(self, error: Exception | None) -> None:
        self._lose("it has closed its connection" if error is None else str(error))

    def _lose(self, why: str, *, final: bool = False) -> None:
        with self._lock:
            first, self._why = self._why is None, self._why or why
            waiting, self._waiting = list(self._waiting), deque()
        if first:
            # Before the answers fail, so that whoever waits for one knows why.
            self._on_loss(self, why, final)
        for future in waiting:
            future.set_exception(ConnectionResetError(why))


class Module(Protocol):
    """What a device computes with."""

    CALLS: ClassVar[frozenset[str]]  # Names of the methods that the master may call


def serve(channel: ArrayChannel, build: Callable[[], Module]) -> None:
    """Answer the master's calls until it releases the device; its end before that is an error.

    The next call is received while one is computed, and answers are sent meanwhile. The module is
    built when the master is connected, so that it learns of an error of that, too.
    """
    # The queue stays short even if this device is slow: the master waits for its answers.
    inbox: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
    duplex = Duplex(channel, inbox.put, lambda _: inbox.put(None))
    duplex.start()
    try:
        module = build()
        while (call := inbox.get()) is not None:
            if call.name == RELEASE:
                return
            if call.name == FAILURE:
                raise ServerUnreachableError(f"The master has failed: {_text(call)}")
            if call.name not in module.CALLS:
                raise RemoteProtocolError(
                    f"One of {sorted(module.CALLS)} is expected. Received: {call.name!r}."
                )
            clock = time.perf_counter()
            for arrays in getattr(module, call.name)(*call.arrays, **call.values):
                duplex.send(ANSWER, {"seconds": time.perf_counter() - clock}, arrays)
                clock = time.perf_counter()
        raise ServerUnreachableError("The master's process or its host is gone.")
    except Exception as error:
        duplex.send(*_failure(error))
        raise
    finally:
        duplex.finish()


def _failure(error: BaseException) -> tuple[str, dict[str, Any]]:
    kind, text = type(error).__name__, str(error)[:LONGEST_FAILURE]
    return FAILURE, {"error": kind, "text": text, "final": not isinstance(error, MAY_HEAL)}


def _text(call: Call) -> str:
    return f"{call.values.get('error')}: {call.values.get('text')}"

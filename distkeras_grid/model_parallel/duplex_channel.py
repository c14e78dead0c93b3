"""A channel with one thread per direction, so that neither direction waits for the other."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence

import msgspec

from distkeras_grid.model_parallel.arithmetic import Array
from distkeras_grid.parameter_server.array_channel import BROKEN, ArrayChannel
from distkeras_grid.parameter_server.timeouts import STALL_SECONDS


class Duplex:
    """Sends messages in the order of `send`, and passes on received ones.

    `ended`: called once, in the same thread, when nothing more comes: with the error that ended the
    line, or None if the other end has closed it.
    """

    def __init__(
        self,
        channel: ArrayChannel,
        took: Callable[[msgspec.Struct, list[Array]], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self._channel = channel
        self._took = took
        self._ended = ended
        self._outbox: queue.SimpleQueue[tuple[msgspec.Struct, Sequence[Array]] | None] = (
            queue.SimpleQueue()
        )
        self._error: Exception | None = None
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._receiver = threading.Thread(target=self._receive, daemon=True)

    @property
    def moved(self) -> int:
        """Bytes moved in both directions so far."""
        return self._channel.sent + self._channel.received

    def start(self) -> None:
        """Start both threads."""
        self._sender.start()
        self._receiver.start()

    def send(self, message: msgspec.Struct, arrays: Sequence[Array] = ()) -> None:
        """Send a message after those before it; return at once.

        `arrays`: they must not change until they are sent.
        """
        self._outbox.put((message, arrays))

    def close(self) -> None:
        """End the line at once."""
        self._outbox.put(None)
        self._channel.interrupt()

    def finish(self, seconds: float) -> None:
        """End the line when everything is sent, or after so many seconds."""
        self._outbox.put(None)
        self._sender.join(seconds)
        self._channel.interrupt()

    def _send(self) -> None:
        try:
            while (item := self._outbox.get()) is not None:
                self._channel.send(*item)
        except BROKEN as error:
            self._error = error
            # The receiving thread notices it too, and calls `ended`.
            self._channel.interrupt()

    def _receive(self) -> None:
        error: Exception | None = None
        try:
            while (item := self._channel.receive(None)) is not None:
                self._took(*item)
        except BROKEN as broken:
            error = broken
        self.close()
        # The channel may be closed only when no other thread uses it.
        self._sender.join(STALL_SECONDS)
        with contextlib.suppress(OSError):
            self._channel.close()
        self._ended(self._error or error)

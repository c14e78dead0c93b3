"""A connection that takes bytes in any pieces, as they come from a stream."""

from __future__ import annotations

from collections.abc import Generator

from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.messages import Message


class ByteConnection(Connection):
    """A connection without a channel."""

    _frame: Generator[memoryview, None, Message] | None = None
    _target = memoryview(b"")

    @property
    def mid_frame(self) -> bool:
        return self._frame is not None

    def receive(self, data: bytes) -> list[Message]:
        messages = []
        while data:
            if self._frame is None:
                self._frame = self.receive_frame()
                self._target = next(self._frame)
            count = min(len(data), len(self._target))
            self._target[:count] = data[:count]
            data, self._target = data[count:], self._target[count:]
            if not self._target:
                try:
                    self._target = next(self._frame)
                except StopIteration as end:
                    self._frame = None
                    messages.append(end.value)
        return messages

"""Whole messages over a stream of bytes.

Sections are sent from the caller's own memory, and vectors are received into it. Every wait has a
deadline. The deadline of a message applies to all of it, however slowly its bytes arrive.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Self, cast

from distkeras_grid.errors import ParameterServerError
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.messages import (
    LONGEST_GOODBYE,
    Close,
    Message,
    PayloadKind,
)
from distkeras_grid.parameter_server.streams import SocketStream, TransportName, seconds_left
from distkeras_grid.parameter_server.timeouts import GOODBYE_SECONDS, STALL_SECONDS
from distkeras_grid.weights import Vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Bytes a second of the slowest line on which a run makes sense: 16 workers on 2 Mbit/s.
SLOWEST_LINE = 16 * 1024


class Channel:
    """A stream and its end of the protocol."""

    def __init__(self, stream: SocketStream, connection: Connection) -> None:
        self.connection = connection
        self.stream = stream
        connection.passes_files = stream.private
        # That came with the last message.
        self._file: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(
        self,
        message: Message,
        vector: Vector | None = None,
        state: NDArray[np.uint8] | None = None,
        file: int | None = None,
    ) -> None:
        """Send a message and its section: a vector, a state, or a file, which stays open here.

        `message`: must be legal now.
        """
        connection = self.connection
        content, size, payload = PayloadKind.NOTHING, 0, memoryview(b"")
        if state is not None:
            content, size, payload = PayloadKind.STATE, state.nbytes, state.data
        elif vector is not None:
            content, size, payload = connection.pack(type(message), vector)
        elif file is not None:
            content, size = PayloadKind.FILE, 1
        waiting = [memoryview(connection.send(message, size, content))]
        deadline = time.monotonic() + STALL_SECONDS + len(payload) / SLOWEST_LINE
        for piece in connection.sealed(payload):
            self.stream.send([*waiting, piece], deadline)
            waiting = []
        if file is not None:
            self.stream.send_file(file, STALL_SECONDS)

    def receive(self, seconds: float | None) -> Message | None:
        """Receive a message, and its section into ``connection.vector`` or ``received_state``.

        `seconds`: how long the whole message may take; a section has the time of `SLOWEST_LINE` in
        addition. None waits for the first byte without a deadline: TCP keepalive or, on the same
        host, the kernel ends the wait when the peer has gone.
        """
        connection, frame = self.connection, self.connection.receive_frame()
        deadline = None if seconds is None else time.monotonic() + seconds
        target, begun = next(frame), False
        while True:
            left = deadline and seconds_left(deadline + connection.section_due / SLOWEST_LINE)
            if connection.file_is_due:
                self._drop_file()
                count, self._file = self.stream.receive_file(left)
            else:
                count = self.stream.receive_into(target, left)
            if count == 0:
                if begun:
                    raise ConnectionResetError("the other side closed it within a message")
                return None
            begun, deadline = True, deadline or time.monotonic() + STALL_SECONDS
            target = target[count:]
            if not target:
                try:
                    target = next(frame)
                except StopIteration as end:
                    return cast("Message", end.value)

    def take_file(self) -> int | None:
        """Return the file that came with the last message, if any; the caller closes it."""
        file, self._file = self._file, None
        return file

    def _drop_file(self) -> None:
        file = self.take_file()
        if file is not None:
            os.close(file)

    @property
    def transport(self) -> TransportName:
        """How vectors travel."""
        return "shared memory" if self.connection.uses_shared_memory else self.stream.transport

    def close(self) -> None:
        """Close the connection."""
        self._drop_file()
        self.stream.close()

    def say_goodbye(self, error: ParameterServerError) -> None:
        """Tell the peer, if it still listens, why its connection ends, and close it."""
        try:
            self.send(Close(type(error).__name__, str(error)[:LONGEST_GOODBYE]))
        except OSError:
            return
        self.linger_close(GOODBYE_SECONDS)

    def linger_close(self, seconds: float) -> None:
        """Close after the peer has had time to read the last message.

        If a socket with unread bytes is closed, the kernel drops what was sent last. So everything
        that the peer still sends is read and discarded, for at most `seconds`.
        """
        deadline = time.monotonic() + seconds
        scratch = bytearray(1 << 16)
        with contextlib.suppress(OSError), self:
            self.stream.finish_sending()
            while self.stream.receive_into(memoryview(scratch), seconds_left(deadline)):
                pass

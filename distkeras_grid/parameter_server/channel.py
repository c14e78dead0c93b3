"""Whole messages over a stream of bytes.

Sections go out from the caller's own memory, and vectors come in to it. Every wait has an end: a
message that has begun has a deadline for all of it, however slowly its bytes trickle.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Self

from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.messages import Content, Message
from distkeras_grid.parameter_server.streams import Stream
from distkeras_grid.weights import Vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: A message that has begun is complete after so long, and its section's time on a slow line.
STALL_SECONDS = 60.0
#: Bytes a second of the slowest line on which a run makes sense: 16 workers on 2 Mbit/s.
SLOWEST_LINE = 16 * 1024


class Channel:
    """A stream and its end of the protocol.

    Parameters
    ----------
    stream : Stream
        Connected; closed with the channel.
    connection : Connection
        The protocol's state.
    """

    def __init__(self, stream: Stream, connection: Connection) -> None:
        self.connection = connection
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(
        self,
        message: Message,
        vector: Vector | None = None,
        state: NDArray[np.uint8] | None = None,
    ) -> None:
        """Send a message, and the section it carries.

        Parameters
        ----------
        message : Message
            Must be legal now.
        vector : ndarray, optional
            Contiguous, ``float32``.
        state : ndarray, optional
            Contiguous, ``uint8``; in place of a vector.

        Raises
        ------
        LocalProtocolError
            If the message is not legal now.
        OSError
            If the peer is gone, or has not taken all of it in time.
        """
        payload, content = memoryview(b""), Content.NOTHING
        if state is not None:
            payload, content = state.data, Content.STATE
        elif vector is not None:
            payload, content = self.connection.packed(type(message), vector), Content.VECTOR
        parts = [memoryview(self.connection.send(message, len(payload), content)), payload]
        deadline = time.monotonic() + STALL_SECONDS + len(payload) / SLOWEST_LINE
        while parts:
            sent = self._stream.send(parts, _left(deadline))
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]

    def receive(self, seconds: float | None) -> Message | None:
        """Receive a message; its section lands in ``connection.vector`` or ``received_state``.

        Parameters
        ----------
        seconds : float or None
            How long the whole message may take; a section has the time of `SLOWEST_LINE` besides.
            None waits for its first byte without end, and trusts TCP keepalive, and on the same
            host the kernel, to end the wait when the peer is gone.

        Returns
        -------
        Message or None
            None if the peer has closed the connection between two messages.

        Raises
        ------
        RemoteProtocolError
            If the peer breaks the protocol.
        OSError
            If the connection breaks, within a message too; TimeoutError if the message is not
            complete in time, however slowly its bytes trickle in.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        announced = 0
        while True:
            left = None if deadline is None else _left(deadline + announced / SLOWEST_LINE)
            count = self._stream.receive_into(self.connection.wanted(), left)
            if count == 0:
                if self.connection.mid_frame:
                    raise ConnectionResetError("the other side closed it within a message")
                return None
            message = self.connection.received(count)
            if message is not None:
                return message
            if deadline is None:
                deadline = time.monotonic() + STALL_SECONDS
            announced = self.connection.announced

    def peer_is_gone(self) -> bool:
        """Whether the peer, whose turn it is not, has closed the connection."""
        return self._stream.ended()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def close_after_goodbye(self, seconds: float) -> None:
        """Close once the peer has had time to read the last message.

        Closing a socket with unread bytes makes the kernel drop what was sent last, so what the
        peer still sends is read and thrown away, for `seconds` at most.
        """
        deadline = time.monotonic() + seconds
        scratch = bytearray(1 << 16)
        with contextlib.suppress(OSError), self:
            self._stream.finish_sending()
            while self._stream.receive_into(memoryview(scratch), _left(deadline)):
                pass


def _left(deadline: float) -> float:
    """Return the seconds until a moment on the monotonic clock.

    Raises
    ------
    TimeoutError
        If it has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left

"""Calls with arrays between the tasks of a model, over the parameter server's streams.

A frame is a fixed binary header, a packet as MessagePack, and its arrays::

    magic    4 bytes
    length   uint32    bytes of MessagePack
    payload  uint64    bytes of the arrays: little-endian, C order, one after the other

Before that both ends prove that they have the group's key, with the frames of the parameter server.
If other hosts can reach the bytes, the packet and each array are sealed, one by one. Streams,
addresses, the handshake and seals are those of the parameter server, whose own protocol moves
vectors of one length and answers each request before the next; here arrays have all shapes, and
calls and answers cross each other.
"""

from __future__ import annotations

import math
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import (
    UNREADABLE,
    ParameterServerError,
    RemoteProtocolError,
)
from distkeras_grid.field_types import Count
from distkeras_grid.parameter_server.auth import authenticate, new_nonce
from distkeras_grid.parameter_server.channel import SLOWEST_LINE, Channel
from distkeras_grid.parameter_server.client_session import ClientSession
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.encryption import LONGEST_PART, SEAL_BYTES, FrameCipher, Part
from distkeras_grid.parameter_server.messages import Done, Endpoint, WorkerHello
from distkeras_grid.parameter_server.settings import BindAddress, ServerAddress
from distkeras_grid.parameter_server.streams import SocketStream, seconds_left
from distkeras_grid.parameter_server.timeouts import STALL_SECONDS
from distkeras_grid.parameter_server.transports import Listener
from distkeras_grid.rows import aligned_empty

#: Errors of a connection that does not go on.
BROKEN = (OSError, ParameterServerError)
#: Most clients at a time that have not proved yet that they have the key.
STRANGERS = 64
MAGIC = b"DKG4"
#: Most bytes of a packet without its arrays.
_LONGEST_PACKET = 1 << 20
_HEADER = struct.Struct("<4sIQ")
_ENCODER = msgspec.msgpack.Encoder()


class ArrayHeader(msgspec.Struct, frozen=True, array_like=True):
    """Type and shape of an array that follows."""

    dtype: Literal["float32", "uint8"]
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=8)]

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class _Packet(msgspec.Struct, frozen=True, array_like=True):
    name: Annotated[str, msgspec.Meta(max_length=100)]
    values: dict[str, Any]
    arrays: Annotated[tuple[ArrayHeader, ...], msgspec.Meta(max_length=8)] = ()


_DECODER = msgspec.msgpack.Decoder(_Packet)


class Call(NamedTuple):
    """A call or an answer: its name, values of plain types, and arrays."""

    name: str
    values: Mapping[str, Any]
    arrays: list[NDArray[Any]]


class ArrayChannel:
    """Calls and answers over a stream; each wait has a deadline.

    One thread may send while another one receives. `moved`: bytes in both directions so far.
    """

    def __init__(self, stream: SocketStream, ciphers: FrameCipher | None = None) -> None:
        self._stream, self._seals = stream, ciphers
        self._sent = self._received = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def moved(self) -> int:
        """Bytes in both directions so far."""
        return self._sent + self._received

    def send(
        self, name: str, values: Mapping[str, Any], arrays: Sequence[NDArray[Any]] = ()
    ) -> None:
        """Send a packet, without a copy of contiguous arrays."""
        whole = [np.ascontiguousarray(array) for array in arrays]
        headers = tuple(ArrayHeader(array.dtype.name, array.shape) for array in whole)  # type: ignore[arg-type]
        body = _ENCODER.encode(_Packet(name, dict(values), headers))
        payload = sum(array.nbytes for array in whole)
        header = _HEADER.pack(MAGIC, len(body), payload)
        deadline = time.monotonic() + STALL_SECONDS + payload / SLOWEST_LINE
        waiting = [memoryview(header)]
        parts = [self._sealed(memoryview(body), header)]
        parts += [self._sealed(array.reshape(-1).data.cast("B")) for array in whole if array.size]
        for pieces in parts:
            for place, piece in enumerate(pieces):
                if place:
                    # The next piece of a part is written where this one lies.
                    self._send(waiting, deadline)
                    waiting = []
                waiting.append(piece)
        self._send(waiting, deadline)

    def receive(self, seconds: float | None) -> Call | None:
        """Receive a packet with its arrays; None if the other end has closed the connection.

        `seconds`: how long to wait for the packet; its arrays have the time of `SLOWEST_LINE` in
        addition. None waits for the first byte until the other end is gone.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        header = bytearray(_HEADER.size)
        first = _until(deadline, partial(self._stream.receive_into, memoryview(header)))
        if not first:
            return None
        deadline = deadline or time.monotonic() + STALL_SECONDS
        _fill(self._stream, memoryview(header)[first:], deadline)
        magic, length, payload = _HEADER.unpack(header)
        # Before memory is allocated for what it announces.
        if magic != MAGIC or length > _LONGEST_PACKET or payload > LONGEST_PART:
            raise RemoteProtocolError(
                "The other side does not speak this protocol: install the same distkeras_grid on "
                f"driver and executors. Received: {bytes(header)!r}."
            )
        deadline += payload / SLOWEST_LINE
        body = memoryview(bytearray(length))
        self._fill(body, deadline, header)
        try:
            packet = _DECODER.decode(body)
        except UNREADABLE as error:
            raise RemoteProtocolError(f"A packet cannot be read: {error}.") from error
        if sum(array.nbytes for array in packet.arrays) != payload:
            raise RemoteProtocolError(
                f"Arrays {list(packet.arrays)} are expected. Announced: {payload} bytes."
            )
        arrays = [aligned_empty(each.shape, each.dtype) for each in packet.arrays]
        for array in arrays:
            if array.size:
                self._fill(array.reshape(-1).data.cast("B"), deadline)
        self._received += _HEADER.size + length + payload
        return Call(packet.name, packet.values, arrays)

    def interrupt(self) -> None:
        """Let other threads that wait here go on: nothing more comes or goes."""
        self._stream.interrupt()

    def close(self) -> None:
        """Close the connection. No other thread may be using it; see `interrupt`.

        The system reuses a closed file descriptor at once, and a thread that is just about to read
        from it would read from, or wait for, another file.
        """
        self._stream.close()

    def _sealed(self, part: memoryview, clear: Part = b"") -> Iterator[memoryview]:
        return iter((part,)) if self._seals is None else self._seals.seal(part, clear)

    def _send(self, parts: Sequence[memoryview], deadline: float) -> None:
        self._sent += sum(map(len, parts))
        self._stream.send(parts, deadline)

    def _fill(self, part: memoryview, deadline: float, clear: Part = b"") -> None:
        """Receive a part; decrypt it, and refuse it if its seal does not fit."""
        _fill(self._stream, part, deadline)
        if self._seals is not None:
            seal = bytearray(SEAL_BYTES)
            _fill(self._stream, memoryview(seal), deadline)
            self._seals.open(part, seal, clear)


class HandshakeListener:
    """Listens, and admits clients that prove that they have the key; a context manager.

    `admit`: takes the number of a client and its channel, in a thread of its own.
    """

    def __init__(
        self, place: BindAddress, run: str, key: bytes, admit: Callable[[int, ArrayChannel], None]
    ) -> None:
        self._run, self._key, self._admit = run, key, admit
        self._strangers = threading.BoundedSemaphore(STRANGERS)
        self._listener = Listener(place, self._strangers, self._meet)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()

    @property
    def address(self) -> ServerAddress:
        """Address to which clients connect."""
        return self._listener.address

    def _meet(self, stream: SocketStream) -> None:
        channel = Channel(stream, Connection(Endpoint.SERVER, 0))
        try:
            hello = authenticate(channel, lambda _: self._key, self._run)
            if not isinstance(hello, WorkerHello):
                channel.close()
                return
            channel.send(Done())
        except BROKEN as error:
            sys.stderr.write(f"a connection was refused: {type(error).__name__}: {error}\n")
            if isinstance(error, ParameterServerError):
                channel.say_goodbye(error)
            channel.close()
            return
        finally:
            self._strangers.release()
        self._admit(hello.seat, ArrayChannel(stream, channel.connection.ciphers))


def connect(
    address: ServerAddress, run: str, key: bytes, number: int, seconds: float
) -> ArrayChannel:
    """Connect to a gate by the fastest way there is; both ends prove that they have the key.

    `number`: of this task in its group.
    `seconds`: time limit for connecting and proving [s].
    """
    session = ClientSession.open(
        *(address, key),
        lambda: WorkerHello(run, number, 0, 0, new_nonce()),
        lambda: Connection(Endpoint.CLIENT, 0),
        seconds,
    )
    return ArrayChannel(session.channel.stream, session.channel.connection.ciphers)


def _fill(stream: SocketStream, target: memoryview, deadline: float) -> None:
    while target:
        count = _until(deadline, partial(stream.receive_into, target))
        if not count:
            raise ConnectionResetError("the other side closed it within a message")
        target = target[count:]


def _until(deadline: float | None, act: Callable[[float], int]) -> int:
    """Receive before a deadline; None waits as long as the connection lasts.

    Both threads of a channel share the timeout of its socket, so either may see the other's.
    """
    while True:
        try:
            return act(STALL_SECONDS if deadline is None else seconds_left(deadline))
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise

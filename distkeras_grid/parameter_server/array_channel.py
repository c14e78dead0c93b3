"""Messages with arrays over a stream, and the proof of the run's key at its start.

A frame is a fixed binary header, the fields of the message as MessagePack, and its arrays::

    magic    4 bytes   of the vocabulary
    version  uint8     of the vocabulary
    type     uint8     position in the vocabulary
    length   uint32    bytes of MessagePack
    payload  uint64    bytes of the arrays: float32, little-endian, C order, one after the other

If other hosts can reach the bytes, the fields and each array are sealed, one by one.
Streams, addresses, proofs and seals are those of the workers' protocol (`frames`). That one moves
vectors of one length and answers each request before the next; here arrays have all shapes, and
requests and answers cross each other.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, Self, TypeVar

import msgspec
import numpy as np

from distkeras_grid.errors import (
    UNREADABLE,
    AuthenticationError,
    LocalProtocolError,
    ParameterServerError,
    RemoteProtocolError,
    error_named,
)
from distkeras_grid.parameter_server.auth import new_nonce, prove, session_keys, verify
from distkeras_grid.parameter_server.channel import SLOWEST_LINE
from distkeras_grid.parameter_server.encryption import LONGEST_PART, SEAL_BYTES, FrameCipher, Part
from distkeras_grid.parameter_server.message_schema import UNPROVEN, ArrayMessage, MessageSchema
from distkeras_grid.parameter_server.messages import (
    HEADER_LIMIT,
    PRE_AUTHENTICATION_LIMIT,
    Challenge,
    Close,
    Endpoint,
    Proof,
    WorkerHello,
)
from distkeras_grid.parameter_server.streams import Stream, seconds_left, send_all
from distkeras_grid.parameter_server.timeouts import HANDSHAKE_SECONDS, STALL_SECONDS
from distkeras_grid.rows import aligned_empty
from distkeras_grid.weights import Vector as Array

#: Errors of a connection that does not go on.
BROKEN = (OSError, ParameterServerError)
#: Most bytes of a message's arrays. A larger batch would not fit a device either.
LARGEST_PAYLOAD = LONGEST_PART
#: A welcome describes each convolution, and a model may have a thousand.
_LONGEST_BODY = 16 * HEADER_LIMIT
_HEADER = struct.Struct("<4sBBIQ")
_ENCODER = msgspec.msgpack.Encoder()
_Message = TypeVar("_Message", bound=msgspec.Struct)


class ArrayChannel:
    """Messages with arrays over a stream; each wait has a deadline.

    One thread may send while another one receives.

    `sent, received`: bytes sent and received so far.
    """

    def __init__(self, stream: Stream, vocabulary: MessageSchema) -> None:
        self._stream, self._vocabulary = stream, vocabulary
        self.proven = False
        self.sent = self.received = 0
        self._seals: FrameCipher | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(self, message: msgspec.Struct, arrays: Sequence[Array] = ()) -> None:
        """Send a message and its arrays, without a copy of contiguous ones."""
        contiguous = [np.ascontiguousarray(array, np.float32) for array in arrays]
        if isinstance(message, ArrayMessage):
            message = msgspec.structs.replace(message, shapes=tuple(a.shape for a in contiguous))
        elif contiguous:
            raise LocalProtocolError(f"{type(message).__name__} carries no arrays.")
        body = _ENCODER.encode(message)
        payload = sum(array.nbytes for array in contiguous)
        known = self._vocabulary
        number = known.number_of(message)
        header = _HEADER.pack(known.magic, known.version, number, len(body), payload)
        deadline = time.monotonic() + STALL_SECONDS + payload / SLOWEST_LINE
        waiting = [memoryview(header)]
        whole = [self._sealed(memoryview(body), header)]
        whole += [self._sealed(array.data.cast("B")) for array in contiguous if array.size]
        for pieces in whole:
            for place, piece in enumerate(pieces):
                if place:
                    # The next piece of a part is written where this one lies.
                    self._send(waiting, deadline)
                    waiting = []
                waiting.append(piece)
        self._send(waiting, deadline)

    def receive(self, seconds: float | None) -> tuple[msgspec.Struct, list[Array]] | None:
        """Receive a message and its arrays.

        `seconds`: how long to wait for the message; its arrays have the time of `SLOWEST_LINE` in
        addition. None waits for the first byte until the other end is gone.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        header = bytearray(_HEADER.size)
        first = _until(deadline, partial(self._stream.receive_into, memoryview(header)))
        if not first:
            return None
        deadline = deadline or time.monotonic() + STALL_SECONDS
        self._fill(memoryview(header)[first:], deadline)
        kind, length, payload = self._checked(header)
        deadline += payload / SLOWEST_LINE
        body = bytearray(length)
        self._fill(memoryview(body), deadline)
        self._open(memoryview(body), deadline, header)
        try:
            message = self._vocabulary.decode(kind, body)
        except UNREADABLE as error:
            raise RemoteProtocolError(f"A {kind.__name__} cannot be read: {error}.") from error
        arrays = self._arrays(message, payload, deadline)
        self.received += _HEADER.size + length + payload
        return message, arrays

    def protect(self, side: Endpoint, keys: Mapping[Endpoint, bytes]) -> None:
        """Trust the other end, and seal what follows unless no other host can reach it."""
        self.proven = True
        if not self._stream.private:
            self._seals = FrameCipher(side, keys)

    def expect(self, kind: type[_Message], seconds: float) -> _Message:
        """Receive a message of one kind, without arrays."""
        received = self.receive(seconds)
        if received is None:
            raise ConnectionResetError("the other side closed it")
        message, _ = received
        if isinstance(message, Close):
            raise error_named(message.error, message.message, ParameterServerError) or (
                ParameterServerError(message.message)
            )
        if not isinstance(message, kind):
            raise RemoteProtocolError(f"{kind.__name__} is expected. Received: {message!r}.")
        return message

    def interrupt(self) -> None:
        """Let other threads that wait here go on: nothing more comes or goes."""
        self._stream.interrupt()

    def close(self) -> None:
        """Close the connection. No other thread may be using it; see `interrupt`.

        The system reuses a closed file descriptor at once, and a thread that is just about to read
        from it would read from, or wait for, another file.
        """
        self._stream.close()

    def _checked(self, header: bytearray) -> tuple[type[msgspec.Struct], int, int]:
        """Refuse a header before memory is allocated for what it announces."""
        magic, version, number, length, payload = _HEADER.unpack(header)
        known = self._vocabulary
        if (magic, version) != (known.magic, known.version) or number >= len(known.messages):
            raise RemoteProtocolError(
                "The other side does not speak this protocol: install the same distkeras_grid on "
                f"driver and executors. Received: {bytes(header[:6])!r}."
            )
        kind = known.messages[number]
        if not self.proven and kind not in UNPROVEN:
            raise RemoteProtocolError(f"{kind.__name__} may not come before a proof of the key.")
        longest = _LONGEST_BODY if self.proven else PRE_AUTHENTICATION_LIMIT
        most = LARGEST_PAYLOAD if self.proven else 0
        if length > longest or payload > most:
            raise RemoteProtocolError(
                f"{kind.__name__} may have {longest} bytes and {most} bytes of arrays. Announced: "
                f"{length} and {payload}."
            )
        return kind, length, payload

    def _arrays(self, message: msgspec.Struct, payload: int, deadline: float) -> list[Array]:
        shapes = message.shapes if isinstance(message, ArrayMessage) else ()
        if 4 * sum(map(math.prod, shapes)) != payload:
            raise RemoteProtocolError(
                f"Arrays of the shapes {list(shapes)} are expected. Announced: {payload} bytes."
            )
        arrays = [aligned_empty(shape) for shape in shapes]
        for array in arrays:
            if array.size:
                self._fill(array.data.cast("B"), deadline)
                self._open(array.data.cast("B"), deadline)
        return arrays

    def _sealed(self, part: memoryview, clear: Part = b"") -> Iterator[memoryview]:
        return iter((part,)) if self._seals is None else self._seals.seal(part, clear)

    def _open(self, part: memoryview, deadline: float, clear: Part = b"") -> None:
        """Receive the seal of a part, decrypt the part, and refuse it if the seal does not fit."""
        if self._seals is not None:
            seal = bytearray(SEAL_BYTES)
            self._fill(memoryview(seal), deadline)
            self._seals.open(part, seal, clear)

    def _send(self, parts: Sequence[memoryview], deadline: float) -> None:
        self.sent += sum(map(len, parts))
        send_all(self._stream, parts, deadline)

    def _fill(self, target: memoryview, deadline: float) -> None:
        while target:
            count = _until(deadline, partial(self._stream.receive_into, target))
            if not count:
                raise ConnectionResetError("the other side closed it within a message")
            target = target[count:]


class Nonces(Protocol):
    """The nonces of clients that have proved that they have the key."""

    def check(self, nonce: str) -> None:
        """Refuse a nonce that is malformed or was used before."""
        ...

    def remember(self, nonce: str) -> None:
        """Record that a conversation with this nonce has been authenticated."""
        ...


def accept(
    channel: ArrayChannel,
    key_of: Callable[[int], bytes],
    run: str,
    nonces: Nonces,
    welcome: ArrayMessage,
    permit: Callable[[WorkerHello], None] = lambda _: None,
) -> WorkerHello:
    """Admit a client that proves that it has the key; the listening end of the handshake."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    hello = channel.expect(WorkerHello, HANDSHAKE_SECONDS)
    nonces.check(hello.nonce)
    key, nonce = key_of(hello.seat), new_nonce()
    channel.send(Challenge(nonce, prove(key, Endpoint.SERVER, hello, nonce)))
    proof = channel.expect(Proof, seconds_left(deadline))
    verify(key, Endpoint.CLIENT, hello, nonce, proof.proof)
    nonces.remember(hello.nonce)
    channel.protect(Endpoint.SERVER, session_keys(key, hello, nonce))
    if hello.run != run:
        raise AuthenticationError(f"This is run {run!r}. Received: {hello.run!r}.")
    permit(hello)
    channel.send(welcome)
    return hello


def join(
    channel: ArrayChannel, key: bytes, hello: WorkerHello, seconds: float, welcome: type[_Message]
) -> _Message:
    """Prove that this end has the key; the connecting end of the handshake.

    `seconds`: time limit for the whole handshake [s].
    """
    deadline = time.monotonic() + seconds
    channel.send(hello)
    challenge = channel.expect(Challenge, seconds_left(deadline))
    verify(key, Endpoint.SERVER, hello, challenge.nonce, challenge.proof)
    channel.send(Proof(prove(key, Endpoint.CLIENT, hello, challenge.nonce)))
    channel.protect(Endpoint.CLIENT, session_keys(key, hello, challenge.nonce))
    return channel.expect(welcome, seconds_left(deadline))


def _until(deadline: float | None, act: Callable[[float], int]) -> int:
    """Send or receive before a deadline; None waits as long as the connection lasts.

    Both threads of a channel share the timeout of its socket, so either may see the other's.
    """
    while True:
        try:
            return act(STALL_SECONDS if deadline is None else seconds_left(deadline))
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise

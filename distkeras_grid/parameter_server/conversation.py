"""A client's conversation with the server: authenticated, a question and an answer at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self, TypeVar

from distkeras_grid import errors
from distkeras_grid.errors import ParameterServerError, RefusedError, RemoteProtocolError
from distkeras_grid.parameter_server.auth import prove, verify
from distkeras_grid.parameter_server.compression import WireName
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.messages import (
    Challenge,
    DriverHello,
    Goodbye,
    Message,
    Proof,
    Refused,
    Side,
    Waiting,
    WorkerHello,
)
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.transports import STALL_SECONDS, Channel, connect, unreachable
from distkeras_grid.weights import Vector

_Answer = TypeVar("_Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Conversation:
    """An authenticated channel, with errors that say who could not reach whom."""

    channel: Channel
    address: ServerAddress

    @classmethod
    def open(
        cls,
        address: ServerAddress,
        key: bytes,
        hello: WorkerHello | DriverHello,
        welcome: type[Message],
        deadline: float,
        *,
        compression: WireName | None = None,
    ) -> Self:
        """Connect, prove the key, have it proven, and be welcomed."""
        until = time.monotonic() + deadline
        connection = Connection(Side.CLIENT, hello.size, compression=compression)
        channel = connect(address, connection, until)
        session = cls(channel, address)
        try:
            challenge = session.ask(hello, Challenge, seconds=until - time.monotonic())
            verify(key, Side.SERVER, hello, challenge.nonce, challenge.proof)
            proof = Proof(prove(key, Side.CLIENT, hello, challenge.nonce))
            session.ask(proof, welcome, seconds=until - time.monotonic())
        except BaseException:
            channel.close()
            raise
        return session

    def ask(
        self,
        message: Message,
        expected: type[_Answer],
        vector: Vector | None = None,
        seconds: float = STALL_SECONDS,
    ) -> _Answer:
        """Send a message and return the answer; `seconds` is the longest silence."""
        self._send(message, vector)
        while True:
            answer = self._receive(seconds)
            if isinstance(answer, expected):
                return answer
            if not isinstance(answer, Waiting):
                raise RemoteProtocolError(f"{expected.__name__} was due, {answer!r} came in.")

    def ask_until(
        self, message: Message, expected: type[_Answer], deadline: float
    ) -> _Answer | Waiting:
        """Send a message; return the answer, or the last word on the wait after `deadline`.

        The deadline is a moment on the monotonic clock.
        """
        self._send(message, None)
        while True:
            answer = self._receive(STALL_SECONDS)
            if isinstance(answer, expected):
                return answer
            if isinstance(answer, Waiting) and time.monotonic() > deadline:
                return answer

    def _send(self, message: Message, vector: Vector | None) -> None:
        try:
            self.channel.send(message, vector)
        except OSError as error:
            # The server may have said why before it closed; then that is raised instead.
            self._receive(1.0)
            raise unreachable(self.address, error) from error

    def _receive(self, seconds: float) -> Message:
        try:
            answer = self.channel.receive(max(0.001, seconds))
        except OSError as error:
            raise unreachable(self.address, error) from error
        if answer is None:
            raise unreachable(self.address, ConnectionResetError("the server closed it"))
        if isinstance(answer, Refused):
            raise RefusedError(answer.message)
        if isinstance(answer, Goodbye):
            raise _error_of(answer)
        return answer


def _error_of(goodbye: Goodbye) -> ParameterServerError:
    """Return the exception that a goodbye names; only those of the protocol can be named."""
    kind = getattr(errors, goodbye.error, None)
    if not (isinstance(kind, type) and issubclass(kind, ParameterServerError)):
        kind = ParameterServerError
    return kind(goodbye.message)

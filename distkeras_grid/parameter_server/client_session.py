"""A client's authenticated conversation with the server, one request and answer at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from distkeras_grid.errors import (
    AuthenticationError,
    ParameterServerError,
    RefusedError,
    RemoteProtocolError,
    ServerUnreachableError,
    error_named,
)
from distkeras_grid.parameter_server.auth import prove, session_keys, verify
from distkeras_grid.parameter_server.channel import Channel
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.messages import (
    Challenge,
    Close,
    Done,
    DriverHello,
    Endpoint,
    Keepalive,
    Message,
    Proof,
    Rejection,
    WorkerHello,
)
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.timeouts import STALL_SECONDS
from distkeras_grid.parameter_server.transports import Route, routes, unreachable
from distkeras_grid.weights import Vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_Answer = TypeVar("_Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class ClientSession:
    """An authenticated channel, with errors that say who could not reach whom."""

    channel: Channel
    address: ServerAddress

    @classmethod
    def open(
        cls,
        address: ServerAddress,
        key: bytes,
        hello: Callable[[], WorkerHello | DriverHello],
        protocol: Callable[[], Connection],
        seconds: float,
    ) -> ClientSession:
        """Connect and authenticate both ends, with one attempt on each route.

        `hello, protocol`: return a new claim, and a new end of the protocol, for each attempt.
        `seconds`: time for all of it [s].
        """

        def by(route: Route, limit: float) -> ClientSession:
            until, claim = time.monotonic() + limit, hello()
            try:
                stream = route(limit)
            except OSError as error:
                raise unreachable(address, error) from error
            session = cls(Channel(stream, protocol()), address)
            try:
                challenge = session.ask(claim, Challenge, seconds=until - time.monotonic())
                verify(key, Endpoint.SERVER, claim, challenge.nonce, challenge.proof)
                proof = Proof(prove(key, Endpoint.CLIENT, claim, challenge.nonce))
                if not stream.private:
                    session.channel.connection.protect(session_keys(key, claim, challenge.nonce))
                session.ask(proof, Done, seconds=until - time.monotonic())
            except BaseException:
                session.channel.close()
                raise
            return session

        whole = time.monotonic() + seconds
        *others, last = routes(address)
        for route in others:
            # Another program may listen at such a name, and may never answer.
            with suppress(AuthenticationError, RemoteProtocolError, ServerUnreachableError):
                return by(route, seconds / 2)
        return by(last, max(0.001, whole - time.monotonic()))

    def ask(
        self,
        message: Message,
        expected: type[_Answer],
        vector: Vector | None = None,
        seconds: float = STALL_SECONDS,
        state: NDArray[np.uint8] | None = None,
        file: int | None = None,
    ) -> _Answer:
        """Send a message with its section: a vector, a state or a file; return the answer.

        `seconds` applies to the whole answer, or to the message that it is still to come.
        """
        try:
            self.channel.send(message, vector, state, file)
        except OSError as error:
            raise self._broken(error) from error
        while True:
            answer = self._receive(seconds)
            if isinstance(answer, expected):
                return answer
            if not isinstance(answer, Keepalive):
                raise RemoteProtocolError(f"{expected.__name__} is expected. Received: {answer!r}.")

    @property
    def state(self) -> NDArray[np.uint8]:
        """The state that came with the last answer."""
        state = self.channel.connection.received_state
        if state is None:
            raise RemoteProtocolError("An answer with a state is expected. Received: no state.")
        return state

    def _broken(self, error: OSError) -> ParameterServerError:
        """Return the error of a connection on which nothing can be sent any more.

        The server may have said why before it closed; then that is raised instead.
        """
        self._receive(1.0)
        return unreachable(self.address, error)

    def _receive(self, seconds: float) -> Message:
        try:
            answer = self.channel.receive(max(0.001, seconds))
        except OSError as error:
            raise unreachable(self.address, error) from error
        if answer is None:
            closed = ConnectionResetError("the server closed it")
            raise unreachable(self.address, closed) from closed
        if isinstance(answer, Rejection):
            raise RefusedError(answer.message)
        if isinstance(answer, Close):
            named = error_named(answer.error, answer.message, ParameterServerError)
            raise named or ParameterServerError(answer.message)
        return answer

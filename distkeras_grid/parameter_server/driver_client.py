"""The driver's client of the parameter server; it reconnects as that of workers does (`client`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self, TypeVar

from distkeras_grid.array_tree import Packed
from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.parameter_server.auth import new_nonce
from distkeras_grid.parameter_server.client_session import ClientSession
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.messages import (
    BeginCheckpoint,
    CenterReply,
    CenterUpdate,
    CheckpointPart,
    Command,
    Done,
    DriverHello,
    Endpoint,
    FetchCenter,
    FetchPart,
    Message,
    Poll,
)
from distkeras_grid.parameter_server.retry_budget import RetryBudget
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.spill import scratch
from distkeras_grid.parameter_server.timeouts import ANSWER_SECONDS, RECONNECT_SECONDS
from distkeras_grid.weights import Vector, empty_vector

_Answer = TypeVar("_Answer", bound=Message)


class DriverClient:
    """The driver's end of the conversation; `connect` makes it.

    `lives`: whether the server's process is there; without it, nothing is tried again.
    """

    _session: ClientSession

    def __init__(
        self,
        address: ServerAddress,
        key: bytes,
        run: str,
        size: int,
        lives: Callable[[], bool] = lambda: True,
    ) -> None:
        self._target, self._driver_key, self._run, self._lives = address, key, run, lives
        self._size = size
        self._offset = 0

    @classmethod
    def connect(
        cls,
        address: ServerAddress,
        key: bytes,
        run: str,
        size: int,
        deadline: float,
        lives: Callable[[], bool] = lambda: True,
    ) -> Self:
        """Connect and authenticate.

        `deadline`: total time [s]. A connection that is refused or breaks is tried again.
        """
        client = cls(address, key, run, size, lives)
        client._open(deadline)
        return client

    def poll(
        self, timeout: float = ANSWER_SECONDS, captured: int = 0, wait_seconds: float = 0.0
    ) -> CenterUpdate:
        """Return the present state of the run with all seats, and the events since the last poll.

        `timeout`: seconds in which the server must answer, including reconnections.
        `wait_seconds`: how long the server may wait with its answer; it does not while workers wait
        at the end of an epoch.
        """
        update = self._ask(Poll(self._offset, captured, wait_seconds), CenterUpdate, timeout)
        self._offset += len(update.events)
        return update

    def command(
        self,
        stop: bool | None = None,
        learning_rate: float | None = None,
        *,
        begin: bool = False,
        epochs: int | None = None,
    ) -> None:
        """Set what the workers receive with their next replies.

        `begin`: whether workers that are ready start now, without the missing ones.
        """
        self._ask(Command(stop, learning_rate, begin, epochs), Done)

    def begin_checkpoint(self, *, at_once: bool = False) -> None:
        """Ask for a checkpoint; a later `poll` reports that its state has been taken."""
        self._ask(BeginCheckpoint(at_once), Done)

    def part(self, number: int, part: int) -> tuple[int, Packed]:
        """Fetch a part of a checkpoint.

        `number`: number of the checkpoint; only the last one can be fetched.
        """
        answer = self._ask(FetchPart(number, part), CheckpointPart)
        return answer.parts, self._session.state

    def center(
        self, snapshot: int | None = None, seat: int = 0, out: Vector | None = None
    ) -> Vector:
        """Fetch the center.

        `snapshot`: number of a snapshot, from 1; with one snapshot per epoch, the number of the
        epoch. The server returns each snapshot once. Without it, the current center.
        `out`: receives the center, shape ``(size,)``, ``float32``, contiguous; default new memory.
        """
        center = empty_vector(self._size) if out is None else out
        self._ask(FetchCenter(snapshot, seat), CenterReply, vector=center)
        return center

    def reconnect(self) -> None:
        """Open a new connection; no event is lost."""
        RetryBudget(RECONNECT_SECONDS).connect(self._reopen, self._lives)

    def close(self) -> None:
        """Close the connection."""
        if hasattr(self, "_session"):
            self._session.channel.close()

    def _open(self, deadline: float) -> None:
        RetryBudget(deadline).connect(self._join, self._lives)

    def _join(self, seconds: float) -> None:
        self._session = ClientSession.open(
            *(self._target, self._driver_key),
            lambda: DriverHello(self._run, self._size, new_nonce()),
            lambda: Connection(Endpoint.CLIENT, self._size, allocate=scratch),
            seconds,
        )

    def _ask(
        self,
        message: Message,
        expected: type[_Answer],
        seconds: float = ANSWER_SECONDS,
        vector: Vector | None = None,
    ) -> _Answer:
        """Make a request, and repeat it on a new connection whenever the connection breaks.

        This takes at most `seconds` in all.
        """
        until = time.monotonic() + seconds
        budget = RetryBudget(seconds)
        while True:
            try:
                self._session.channel.connection.vector = vector
                left = max(0.001, until - time.monotonic())
                return self._session.ask(message, expected, seconds=left)
            except ServerUnreachableError:
                if budget.used_up or time.monotonic() >= until or not self._lives():
                    raise
                budget.connect(self._reopen, self._lives)

    def _reopen(self, seconds: float) -> None:
        self.close()
        self._join(seconds)

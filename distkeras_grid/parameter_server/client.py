"""The clients: what a worker and the driver say to the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from distkeras_grid.errors import (
    ConfigurationError,
    ParameterServerError,
    ServerUnreachableError,
    StartTimeoutError,
)
from distkeras_grid.parameter_server.auth import new_nonce
from distkeras_grid.parameter_server.compression import WireName, from_changes
from distkeras_grid.parameter_server.conversation import Conversation
from distkeras_grid.parameter_server.messages import (
    Center,
    Command,
    Done,
    DriverHello,
    DriverWelcome,
    Exchanged,
    Fail,
    FetchCenter,
    FetchState,
    FetchStep,
    Finish,
    HandOver,
    Poll,
    Ready,
    Start,
    StatePart,
    Step,
    Update,
    Waiting,
    WindowCommit,
    WorkerHello,
    WorkerWelcome,
)
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.weights import Vector, empty_vector

_Result = TypeVar("_Result")
#: Seconds allowed for a new connection after one that broke between two windows.
_RECONNECT_SECONDS = 10.0
#: Characters of a failure's message; a frame's JSON ends at 64 KiB.
_LONGEST_FAILURE = 4000


class WorkerClient:
    """A worker's end of the conversation; made by `connect`.

    Attributes
    ----------
    vector : ndarray
        The center, once `ready` has returned: shape ``(size,)``, ``float32``. Where replies tell
        changes, what is known of it; the caller leaves it as it is.
    seat : int
        Number of the worker.
    """

    def __init__(
        self,
        join: Callable[[float], Conversation],
        seat: int,
        size: int,
        deadline: float,
        *,
        told_changes: bool = False,
    ) -> None:
        self.seat = seat
        self.vector = empty_vector(size)
        self._join = join
        self._rows = 0
        self._told_changes = told_changes
        self._open(deadline)

    @classmethod
    def connect(
        cls,
        address: ServerAddress,
        key: bytes,
        run: str,
        seat: int,
        attempt: int,
        size: int,
        deadline: float,
        *,
        compression: WireName | None = None,
    ) -> Self:
        """Connect, by the Unix socket if the server is on this host, and take the seat.

        Parameters
        ----------
        address : ServerAddress
            Where the server is.
        key : bytes
            The run's key.
        run : str
            Name of the run.
        seat : int
            Number of the worker, from 0.
        attempt : int
            Number of the attempt; a larger one is newer and takes the seat from an older one.
        size : int
            Scalars in the vector.
        deadline : float
            Seconds allowed for all of it.
        compression : str, optional
            How the vectors of the run's exchanges travel; None as they are.

        Raises
        ------
        ServerUnreachableError
            If there is no connection.
        AuthenticationError
            If the two ends do not hold the same key.
        RefusedError
            If run, seat or size are not the server's.
        FencedError
            If a newer attempt has the seat.
        """

        def join(seconds: float) -> Conversation:
            hello = WorkerHello(run, seat, attempt, size, new_nonce())
            return Conversation.open(
                address, key, hello, WorkerWelcome, seconds, compression=compression
            )

        return cls(join, seat, size, deadline, told_changes=compression == "dgc")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def ready(self, rows: int, timeout: float, window_seconds: float = 0.0) -> Start:
        """Wait until every seat is ready, and receive the center into `vector`.

        Parameters
        ----------
        rows : int
            Rows of this seat.
        timeout : float
            Seconds to wait for the others.
        window_seconds : float, default 0.0
            Measured time of one window's batches, for the driver's check of the network.

        Raises
        ------
        StartTimeoutError
            If not all seats are ready in time.
        RefusedError
            If the rows are not those of the run.
        FencedError
            If a newer attempt has taken the seat.
        """
        self._rows = rows
        deadline = time.monotonic() + timeout
        answer = self._conversation.ask_until(Ready(rows, window_seconds), Start, deadline)
        if isinstance(answer, Waiting):
            raise StartTimeoutError(
                f"Worker {self.seat} has waited {timeout:g} s, and {answer.present} of"
                f" {answer.expected} workers are ready: give the run more slots, use fewer"
                " workers (num_workers), or allow more (start_timeout)."
            )
        return answer

    def exchange(self, commit: WindowCommit, payload: Vector, reply: Vector) -> Exchanged:
        """Send a window's commit and receive the rule's reply.

        A connection that breaks is opened anew, once, and the commit sent again; the server folds
        it only if it has not yet.

        Parameters
        ----------
        commit : WindowCommit
            What the window was.
        payload : ndarray
            What the rule proposes: shape ``(size,)``, ``float32``, contiguous.
        reply : ndarray
            Receives the reply, same shape; left as it is if the rule's reply is empty.

        Raises
        ------
        RefusedError
            If the server has not folded it: NaN, a gap in the sequence, or a round that took too
            long.
        FencedError
            If a newer attempt has taken the seat.
        ServerUnreachableError
            If the connection broke and there is no new one.
        """
        for vector in (payload, reply):
            if (vector.shape, vector.dtype) != (self.vector.shape, self.vector.dtype) or (
                not vector.flags.c_contiguous
            ):
                raise ConfigurationError(
                    f"Vectors here are contiguous float32 of shape {self.vector.shape},"
                    f" {vector.dtype} of shape {vector.shape} came in."
                )
        return self._again(lambda: self._exchange(commit, payload, reply))

    def fetch_step(self, version: int, out: Vector) -> Step:
        """Fetch the step that follows a version of the weights.

        Parameters
        ----------
        version : int
            That this worker is at.
        out : ndarray
            Receives the mean gradient, and the statistics behind it; shape ``(size,)``.

        Raises
        ------
        RefusedError
            If the server keeps no such step.
        """

        def ask() -> Step:
            self._conversation.channel.connection.vector = out
            return self._conversation.ask(FetchStep(version), Step)

        return self._again(ask)

    def fetch_state(self, parts: int) -> list[Vector]:
        """Fetch the optimizer state that `hand_over` told, as so many vectors."""
        found = []
        for part in range(1, parts + 1):
            found.append(empty_vector(self.vector.size))
            self._conversation.channel.connection.vector = found[-1]
            self._conversation.ask(FetchState(part), StatePart)
        return found

    def hand_over(self, version: int, parts: Sequence[Vector]) -> None:
        """Tell the weights of a version, and the optimizer state, as vectors."""

        def tell() -> None:
            for number, part in enumerate(parts):
                self._conversation.ask(HandOver(version, number, len(parts)), Done, part)

        self._again(tell)

    def rejoin(self) -> Start:
        """Take the seat anew, as if this worker came late; the center comes into `vector`."""
        self.close()
        self._open(_RECONNECT_SECONDS)
        return self.ready(self._rows, _RECONNECT_SECONDS)

    def finish(self) -> None:
        """Tell the server that this worker has no windows left."""
        self._conversation.ask(Finish(), Done)

    def fail(self, kind: str, message: str) -> bool:
        """Tell the server why this worker gives up, if it still listens.

        The caller has an error of its own to raise, so no other one is raised from here: if the
        conversation has ended already, the server counts the worker as lost.

        Parameters
        ----------
        kind : str
            Class name of the exception.
        message : str
            What it said.

        Returns
        -------
        bool
            Whether the server has heard it.
        """
        try:
            self._conversation.ask(Fail(kind, message[:_LONGEST_FAILURE]), Done)
        except ParameterServerError:
            return False
        return True

    def close(self) -> None:
        """Close the connection; without `finish` or `fail` before, the server counts it lost."""
        self._conversation.channel.close()

    def _open(self, seconds: float) -> None:
        self._conversation = self._join(seconds)
        self._conversation.channel.connection.vector = self.vector

    def _again(self, ask: Callable[[], _Result]) -> _Result:
        """Ask, and if the connection breaks, once more on a new one."""
        try:
            return ask()
        except ServerUnreachableError:
            self.rejoin()
            return ask()

    def _exchange(self, commit: WindowCommit, payload: Vector, reply: Vector) -> Exchanged:
        connection = self._conversation.channel.connection
        connection.vector = reply
        answer = self._conversation.ask(commit, Exchanged, payload)
        if self._told_changes and connection.payload_size:
            # Only now: a reply that was cut short has changed nothing of what is known.
            from_changes(reply, self.vector)
        return answer


class DriverClient:
    """The driver's end of the conversation; made by `connect`."""

    def __init__(self, session: Conversation, size: int) -> None:
        self._conversation = session
        self._size = size
        self._seen = 0

    @classmethod
    def connect(
        cls, address: ServerAddress, key: bytes, run: str, size: int, deadline: float
    ) -> Self:
        """Connect and authenticate.

        Parameters
        ----------
        address : ServerAddress
            Where the server is.
        key : bytes
            The run's key.
        run : str
            Name of the run.
        size : int
            Scalars in the vector.
        deadline : float
            Seconds allowed for all of it.

        Raises
        ------
        ServerUnreachableError, AuthenticationError, RefusedError
            As in `WorkerClient.connect`.
        """
        hello = DriverHello(run, size, new_nonce())
        return cls(Conversation.open(address, key, hello, DriverWelcome, deadline), size)

    def poll(self, timeout: float) -> Update:
        """Return the run as it is now, and the events since the last poll.

        Parameters
        ----------
        timeout : float
            Seconds to wait for the server's answer, which it gives at once.
        """
        update = self._conversation.ask(Poll(self._seen), Update, seconds=timeout)
        self._seen += len(update.events)
        return update

    def command(self, stop: bool | None = None, learning_rate: float | None = None) -> None:
        """Set what the next replies tell the workers.

        Parameters
        ----------
        stop : bool, optional
            Ask them to finish.
        learning_rate : float, optional
            The rate to go on with.

        Raises
        ------
        RefusedError
            If the rate is no positive number.
        """
        self._conversation.ask(Command(stop, learning_rate), Done)

    def center(self, snapshot: int | None = None, seat: int = 0) -> Vector:
        """Fetch the center.

        Parameters
        ----------
        snapshot : int, optional
            As it was when this snapshot was made, from 1; with one snapshot an epoch that is the
            epoch. The server gives each snapshot once.
        seat : int, default 0
            Whose, where each seat has a center of its own.

        Returns
        -------
        ndarray
            Shape ``(size,)``, ``float32``.

        Raises
        ------
        RefusedError
            If there is no such snapshot.
        """
        center = self._conversation.channel.connection.vector = empty_vector(self._size)
        self._conversation.ask(FetchCenter(snapshot, seat), Center)
        return center

    def close(self) -> None:
        """Close the connection."""
        self._conversation.channel.close()

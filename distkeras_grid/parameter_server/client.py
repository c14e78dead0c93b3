"""A worker's client of the parameter server.

If a connection breaks, in any state, it is opened again and the request is repeated. This is
safe for each request: the server counts a commit once, and keeps an answer until the next request.
Bytes that were altered end the attempt.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from distkeras_grid.errors import (
    ParameterServerError,
    RefusedError,
    RemoteProtocolError,
    ServerUnreachableError,
)
from distkeras_grid.field_types import LONGEST_NAME, LONGEST_PLACE
from distkeras_grid.parameter_server.auth import new_nonce
from distkeras_grid.parameter_server.client_session import ClientSession
from distkeras_grid.parameter_server.compression import DeltaDecoder
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.messages import (
    LONGEST_FAILURE,
    CommitReply,
    Done,
    Endpoint,
    FetchState,
    FetchStep,
    GetWorkerState,
    GoOn,
    Heartbeat,
    Message,
    OptimizerState,
    PutOptimizerState,
    PutWorkerState,
    Ready,
    Resume,
    ShareMemory,
    ShareMemoryReply,
    Start,
    Step,
    WindowCommit,
    WorkerEnd,
    WorkerError,
    WorkerHello,
    WorkerStateReply,
)
from distkeras_grid.parameter_server.retry_budget import RetryBudget
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.shared_memory import LENT_LIMIT, SharedBuffer, borrow
from distkeras_grid.parameter_server.spill import scratch
from distkeras_grid.parameter_server.streams import TransportName
from distkeras_grid.parameter_server.timeouts import RECONNECT_SECONDS, Activity
from distkeras_grid.spec import CompressionName
from distkeras_grid.weights import Vector, empty_vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Answer = TypeVar("_Answer", bound=Message)


class WorkerClient:
    """A worker's end of the conversation; `connect` makes it.

    One thread may send signs of life with `beat` while the worker's main thread makes requests.

    `vector`: the center after `ready` has returned, shape ``(size,)``, ``float32``. If replies
    contain only changes, it is the last known center, and the caller must not change it.
    `send_buffer`: memory that a payload of `exchange` may lie in, shape ``(size,)``, ``float32``:
    from there the server reads it without another copy. None if vectors go through a socket.
    """

    def __init__(
        self,
        join: Callable[[float], ClientSession],
        seat: int,
        size: int,
        deadline: float,
        *,
        compression: CompressionName | None = None,
    ) -> None:
        self.seat = seat
        self.vector = empty_vector(size)
        self._join = join
        # One request at a time.
        self._turn = threading.RLock()
        # The arguments of `ready`.
        self._rows, self._digest, self._window_seconds = 0, "", 0.0
        self._running = False
        self._session: ClientSession
        self._compression = compression
        self._decoder = DeltaDecoder(compression, self.vector)
        # What the server reads from, and whether to offer it.
        self._own: SharedBuffer | None = None
        self._offers = compression is None and 0 < self.vector.nbytes <= LENT_LIMIT
        self._interrupted = False
        try:
            RetryBudget(deadline).connect(self._open)
        except BaseException:
            self.close()
            raise

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
        state_size: int = 0,
        worker_state_limit: int = 0,
        compression: CompressionName | None = None,
    ) -> Self:
        """Connect, by the Unix socket if the server is on this host, and take the seat.

        By a Unix socket the two also share memory, if the system and the server have room for it.

        `deadline`: total time [s]. A connection that is refused or breaks is tried again.
        `state_size`: size of the optimizer's state that the run's workers share, in bytes.
        `worker_state_limit`: largest size of the state that a worker keeps on the server, in bytes.
        `compression`: compression of the vectors in exchanges; None for no compression.
        """

        def join(seconds: float) -> ClientSession:
            return ClientSession.open(
                address,
                key,
                lambda: WorkerHello(run, seat, attempt, size, new_nonce()),
                lambda: Connection(
                    Endpoint.CLIENT,
                    size,
                    state_size=state_size,
                    worker_state_limit=worker_state_limit,
                    allocate=scratch,
                    compression=compression,
                ),
                seconds,
            )

        return cls(join, seat, size, deadline, compression=compression)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def first(self) -> Self:
        """The client of the first server, which has all that there is once in a run: this one."""
        return self

    @property
    def send_buffer(self) -> Vector | None:
        """Memory that a payload may lie in; see the class."""
        return None if self._own is None else self._own.vector

    @property
    def transport(self) -> TransportName:
        """How vectors travel now."""
        return self._session.channel.transport

    def use(self, vector: Vector) -> None:
        """Keep the center in the caller's memory from now on; called before `ready`.

        `vector`: shape ``(size,)``, ``float32``, contiguous; becomes the attribute of this name.
        """
        self.vector = self._session.channel.connection.vector = vector
        self._decoder = DeltaDecoder(self._compression, vector)

    def beat(self, activity: Activity, done: int, host: str, log: str) -> bool:
        """Send a sign of life, unless another request waits for its answer."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            self._ask(Heartbeat(activity, done, host[:LONGEST_NAME], log[:LONGEST_PLACE]), Done)
        finally:
            self._turn.release()
        return True

    def ready(
        self,
        rows: int,
        window_seconds: float = 0.0,
        digest: str = "",
    ) -> Start:
        """Wait until every seat is ready, and receive the center into `vector`.

        The driver ends the wait for the others. Meanwhile the server sends signs of life; without
        them the connection counts as broken.

        `window_seconds`: measured time of one window's batches [s]; after several of them without
        progress the driver starts the worker again.
        """
        self._rows, self._digest, self._window_seconds = rows, digest, window_seconds
        with self._turn:
            self._running = False
            answer = self._ask(Ready(rows, window_seconds, digest), Start)
            self._running = True
        return answer

    def exchange(self, commit: WindowCommit, payload: Vector, reply: Vector) -> CommitReply:
        """Send a window's commit and receive the rule's reply.

        If the connection breaks, a new one is opened and the commit is sent again. The server folds
        it only once.

        `payload`: the vector that the rule proposes, shape ``(size,)``, ``float32``, contiguous.
        `reply`: receives the reply; same shape and type. An empty reply leaves it unchanged.
        """
        with self._turn:
            answer = self._ask(commit, CommitReply, payload, out=reply)
            if self._compression is not None and self._session.channel.connection.payload_size:
                self._decoder.decode(reply)
        return answer

    def fetch_step(self, version: int, out: Vector) -> Step:
        """Fetch the step that follows a version of the weights.

        `out`: receives the mean gradient and, after it, the statistics; shape ``(size,)``,
        ``float32``.
        """
        return self._ask(FetchStep(version), Step, out=out)

    def fetch_state(self) -> NDArray[np.uint8]:
        """Fetch the optimizer's state that this worker was promised at its start."""
        with self._turn:
            self._ask(FetchState(), OptimizerState)
            return self._session.state

    def put_optimizer_state(self, version: int, weights: Vector, state: NDArray[np.uint8]) -> None:
        """Send the weights and the optimizer's state of a version.

        `weights`: shape ``(size,)``, ``float32``, contiguous.
        `state`: shape ``(state_size,)``, ``uint8``; empty if the optimizer has none.
        """
        both = np.concatenate([weights.view(np.uint8), state])
        self._ask(PutOptimizerState(version), Done, state=both)

    def put_worker_state(self, sequence: int, version: int, state: NDArray[np.uint8]) -> GoOn:
        """Send the state that this worker needs besides the center to go on.

        `state`: the packed state, shape ``(bytes,)``, ``uint8``, of at most `worker_state_limit`.
        """
        return self._ask(PutWorkerState(sequence, version), GoOn, state=state)

    def get_worker_state(self) -> tuple[WorkerStateReply, NDArray[np.uint8]]:
        """Fetch the last state that an earlier attempt kept."""
        with self._turn:
            return self._ask(GetWorkerState(), WorkerStateReply), self._session.state

    def reconnect(self) -> Start:
        """Take the seat again, as a late worker does, and receive the center into `vector`."""
        with self._turn:
            self._running = False
            RetryBudget(RECONNECT_SECONDS).connect(self._open)
            return self.ready(self._rows, self._window_seconds, self._digest)

    def finish(self) -> None:
        """Tell the server that this worker has no windows left."""
        self._ask(WorkerEnd(), Done)

    def fail(self, kind: str, message: str) -> bool:
        """Tell the server why this worker gives up, if it still listens.

        The caller has its own error to raise, so this method raises none. If the server cannot be
        reached any more, it counts the worker as lost. If a request is still open, for example
        because another thread has interrupted it, a new connection is used.
        """
        # File names in another encoding may contain lone surrogates, which cannot be sent.
        text = message[:LONGEST_FAILURE].encode("utf-8", "backslashreplace").decode()
        failure = WorkerError(kind, text[:LONGEST_FAILURE])
        with self._turn:
            # A worker that has just taken the seat may report a failure without resuming.
            self._running = self._interrupted = False
            try:
                if not self._session.channel.connection.can_send(WorkerError):
                    RetryBudget(RECONNECT_SECONDS).connect(self._open)
                self._ask(failure, Done)
            except ParameterServerError:
                return False
        return True

    def interrupt(self) -> None:
        """Let the request that another thread waits in end with a `ServerUnreachableError`.

        After that only `fail` and `close` are of use.
        """
        self._interrupted = True
        self._session.channel.stream.interrupt()

    def close(self) -> None:
        """Close the connection. Without `finish` or `fail` the server counts the worker as lost."""
        self._hang_up()
        self._lend_nothing()

    def _hang_up(self) -> None:
        if not hasattr(self, "_session"):
            return
        self._session.channel.close()
        # The connection refers to itself, so it would keep the server's memory for a while.
        self._session.channel.connection.close_shared_memory()

    def _open(self, seconds: float) -> None:
        """Take the seat on a new connection, and resume if this worker was running."""
        self._hang_up()
        until = time.monotonic() + seconds
        self._session = self._join(seconds)
        self._session.channel.connection.vector = self.vector
        self._lend(max(0.001, until - time.monotonic()))
        if self._running:
            left = max(0.001, until - time.monotonic())
            self._session.ask(Resume(), Done, seconds=left)
            self._decoder.reset()

    def _lend(self, seconds: float) -> None:
        """Let vectors lie in shared memory, if this connection and both ends can."""
        channel = self._session.channel
        if not (self._offers and channel.stream.private):
            return
        try:
            self._own = self._own or SharedBuffer(self.vector.size)
        except OSError:
            self._offers = False
            return
        try:
            self._session.ask(ShareMemory(), ShareMemoryReply, seconds=seconds, file=self._own.file)
            channel.connection.share_memory(self._own.vector, self._borrowed(channel.take_file()))
        except RefusedError:
            self._lend_nothing()
        except ServerUnreachableError:
            # Some sandboxes let no files through a socket. So the next connection goes without,
            # also if this one has broken by chance.
            self._offers = False
            self._lend_nothing()
            raise

    def _borrowed(self, file: int | None) -> Vector:
        """Return the server's memory."""
        try:
            if file is None:
                raise RemoteProtocolError("Memory of the server is expected. Received: no file.")
            return borrow(file, self.vector.size)
        except (OSError, RemoteProtocolError) as error:
            raise ServerUnreachableError(
                f"Worker {self.seat} cannot read the memory that the parameter server lends, and "
                f"connects again to go without: {error}"
            ) from error
        finally:
            if file is not None:
                os.close(file)

    def _lend_nothing(self) -> None:
        if self._own is not None:
            self._own.close()
        self._own = None

    def _ask(
        self,
        message: Message,
        expected: type[_Answer],
        payload: Vector | None = None,
        state: NDArray[np.uint8] | None = None,
        out: Vector | None = None,
    ) -> _Answer:
        """Make a request, and repeat it on a new connection whenever the connection breaks.

        `out`: receives the vector of the answer.
        """
        budget = None
        with self._turn:
            while True:
                try:
                    if self._interrupted:
                        raise ServerUnreachableError(f"Worker {self.seat} waits no longer.")
                    if out is not None:
                        self._session.channel.connection.vector = out
                    return self._session.ask(message, expected, payload, state=state)
                except ServerUnreachableError:
                    budget = budget or RetryBudget(RECONNECT_SECONDS)
                    if self._interrupted or budget.used_up:
                        raise
                    budget.connect(self._open, lambda: not self._interrupted)

"""The server's sockets and threads: one thread for each connection, and one lock around the core.

Receiving and sending happen outside the lock, in each connection's own buffer. If a request cannot
be answered at once (the start, a synchronous round), the answer is put into the mailbox of the
waiting connection later, by the connection that completes the round.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from distkeras_grid.array_tree import Packed, pack
from distkeras_grid.errors import ParameterServerError, ProtocolError, RefusedError
from distkeras_grid.parameter_server.auth import authenticate, key_of
from distkeras_grid.parameter_server.channel import Channel
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.membership import ConnectionId
from distkeras_grid.parameter_server.messages import (
    Done,
    DriverHello,
    Endpoint,
    Keepalive,
    Message,
    Poll,
    PutOptimizerState,
    Ready,
    Rejection,
    Resume,
    ShareMemory,
    ShareMemoryReply,
    WindowCommit,
    WorkerHello,
)
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Action,
    Disconnect,
    JoinRequest,
    ReceivedMessage,
    RejectWaiter,
    SeatGrant,
    SendReply,
)
from distkeras_grid.parameter_server.settings import (
    ServerAddress,
    ServerSettings,
)
from distkeras_grid.parameter_server.shared_memory import LENT_LIMIT, SharedBuffer, borrow
from distkeras_grid.parameter_server.spill import scratch, spill
from distkeras_grid.parameter_server.streams import SocketStream
from distkeras_grid.parameter_server.timeouts import KEEPALIVE_SECONDS, LOOK_SECONDS
from distkeras_grid.parameter_server.transports import Listener
from distkeras_grid.rules.finite_checks import size_of
from distkeras_grid.weights import Vector, empty_vector

#: Connections in addition to one for each seat: the driver's, those of old attempts, strangers'.
SPARE_CONNECTIONS = 64


class Service:
    """Accepts connections and serves them.

    `center`: the initial weights, shape ``(settings.spec.size,)``, ``float32``; changes in place.
    """

    def __init__(
        self,
        settings: ServerSettings,
        center: Vector,
        key: bytes,
        saved: Sequence[Packed] = (),
    ) -> None:
        self._settings = settings
        self._key = key
        spec = settings.spec
        self._core = (
            ServerCore.resumed(spec, saved, spill) if saved else ServerCore(spec, center, spill)
        )
        self._lock = threading.Lock()
        # What each connection has to send; any thread may add to it.
        self._mailboxes: dict[ConnectionId, SimpleQueue[SendReply | RejectWaiter]] = {}
        # Whether workers wait for the driver at the end of an epoch.
        self._driver_is_due = threading.Event()
        # One clock for deadlines and history: Unix time that never goes back.
        self._epoch = time.time() - time.monotonic()
        # Bytes of the workers' vectors that are mapped here.
        self._borrowed = 0
        self._borrowed_lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(2 * spec.workers + SPARE_CONNECTIONS)
        self._listener = Listener(settings.place, self._slots, self._serve)

    @property
    def address(self) -> ServerAddress:
        """Where clients connect."""
        return self._listener.address

    @property
    def broken(self) -> bool:
        """Whether the core has failed, so that this process must end."""
        return bool(self._core.failure)

    def close(self) -> None:
        """Stop accepting connections."""
        self._listener.close()

    def _serve(self, stream: SocketStream) -> None:
        spec = self._settings.spec
        connection = Connection(
            Endpoint.SERVER,
            spec.size,
            state_size=spec.layout.state_section.nbytes,
            worker_state_limit=spec.layout.worker_state_limit,
            allocate=scratch,
            compression=spec.compression,
        )
        try:
            with Channel(stream, connection) as channel:
                try:
                    hello = self._authenticate(channel)
                    if isinstance(hello, WorkerHello):
                        self._serve_worker(channel, hello)
                    elif isinstance(hello, DriverHello):
                        self._serve_driver(channel)
                except ParameterServerError as error:
                    sys.stderr.write(f"{type(error).__name__}: {error}\n")
                    # The process ends now. To all it is a lost server, also to who waited.
                    if not self.broken:
                        channel.say_goodbye(error)
                except OSError as error:
                    if self.broken:
                        raise
                    # The loss of a worker is an event of its own, and concerns no other connection.
                    sys.stderr.write(f"a connection broke: {error}\n")
        finally:
            self._slots.release()

    def _authenticate(self, channel: Channel) -> Message | None:
        """Return the hello of a client that has the key, None if it has left."""
        hello = authenticate(channel, partial(key_of, self._key), self._settings.run)
        if hello is not None and hello.size != self._settings.spec.size:
            raise RefusedError(
                f"The run's vectors have {self._settings.spec.size} numbers. Received: a client "
                f"whose model has {hello.size}. Let driver and worker build the same model."
            )
        return hello

    # Workers

    def _join(self, hello: WorkerHello) -> ConnectionId:
        """Give a seat to a connection. Whatever an older connection waits for ends."""
        with self._lock:
            first, *rest = self._core.handle(
                JoinRequest(hello.seat, hello.attempt), self._epoch + time.monotonic()
            )
            self._deliver([first, *rest])
        if not isinstance(first, SeatGrant):
            raise _no_answer(f"attempt {hello.attempt} of worker {hello.seat} to join")
        return first.session

    def _serve_worker(self, channel: Channel, hello: WorkerHello) -> None:
        session = self._join(hello)
        try:
            channel.connection.vector = empty_vector(self._settings.spec.size)
            channel.send(Done())
            while (message := channel.receive(None)) is not None:
                # An error keeps this frame for a while, and with it the vector of the last answer.
                answer = None
                try:
                    if isinstance(message, ShareMemory):
                        self._lend(channel)
                        continue
                    answer = self._answer(channel, session, message)
                except RefusedError as error:
                    if not channel.connection.can_send(Rejection):
                        raise
                    channel.send(Rejection(str(error)))
                    continue
                if answer is None:
                    return
                channel.send(answer.message, answer.vector, answer.state)
        finally:
            with self._lock:
                if not self.broken:
                    now = self._epoch + time.monotonic()
                    self._deliver(self._core.handle(Disconnect(session), now))
                del self._mailboxes[session]
            # The connection refers to itself, so it lives until the next collection of garbage.
            # Its vector must not: with every lost worker another one would stay.
            if channel.connection.uses_shared_memory:
                self._count_borrowed(-4 * self._settings.spec.size)
            channel.connection.forget_sections()

    def _lend(self, channel: Channel) -> None:
        """Share memory with a worker, so that vectors need not go through its socket."""
        file = channel.take_file()
        if file is None:
            raise RefusedError("Memory to share comes as a file. Received: none.")
        try:
            if channel.connection.uses_shared_memory:
                raise RefusedError("Memory is shared once. Received: another file.")
            own, theirs = self._shared(file)
        except (OSError, ProtocolError) as error:
            raise RefusedError(f"No memory is shared: {error}") from error
        finally:
            os.close(file)
        channel.connection.vector = own.vector
        channel.connection.share_memory(own.vector, theirs)
        try:
            channel.send(ShareMemoryReply(), file=own.file)
        finally:
            own.close()

    def _shared(self, file: int) -> tuple[SharedBuffer, Vector]:
        size = self._settings.spec.size
        self._count_borrowed(4 * size)
        try:
            theirs = borrow(file, size)
            return SharedBuffer(size), theirs
        except BaseException:
            self._count_borrowed(-4 * size)
            raise

    def _count_borrowed(self, size: int) -> None:
        """Count bytes of a worker's vector before they are mapped, or after they were."""
        with self._borrowed_lock:
            if self._borrowed + size > LENT_LIMIT:
                limit = f"the server maps at most {LENT_LIMIT} bytes of workers"
                raise OSError(errno.ENOMEM, limit)
            self._borrowed += size

    def _answer(
        self, channel: Channel, session: ConnectionId, message: Message
    ) -> SendReply | None:
        """Return the core's answer, None if the client has left in the meantime.

        While the answer waits for other workers, each side checks that the other is alive.
        """
        connection = channel.connection
        vector, state = connection.vector, connection.received_state
        if isinstance(message, PutOptimizerState) and state is not None:
            weights = 4 * self._settings.spec.size
            vector, state = state[:weights].view(np.float32), state[weights:]
        vector = empty_vector(0) if vector is None else vector
        event = ReceivedMessage[Any](session, message, vector, connection.frame_size, state=state)
        if isinstance(message, WindowCommit):
            # Outside the lock: it reads the whole vector.
            event.size = size_of(vector)
        elif isinstance(message, Ready | Resume):
            event.transport = channel.transport
        with self._lock:
            answer = self._deliver(
                self._core.handle(event, self._epoch + time.monotonic()), session
            )
        keepalive_at = time.monotonic() + KEEPALIVE_SECONDS
        while answer is None:
            try:
                answer = self._mailboxes[session].get(timeout=LOOK_SECONDS)
            except Empty:
                if channel.stream.ended():
                    return None
                if time.monotonic() > keepalive_at:
                    channel.send(Keepalive())
                    keepalive_at = time.monotonic() + KEEPALIVE_SECONDS
        if isinstance(answer, RejectWaiter):
            raise answer.error
        return answer

    def _deliver(
        self, actions: Sequence[Action], to: ConnectionId | None = None
    ) -> SendReply | RejectWaiter | None:
        """Put answers into the mailboxes of those who wait; return the one to `to`, if any."""
        own = None
        for action in actions:
            if isinstance(action, SeatGrant):
                self._mailboxes[action.session] = SimpleQueue()
            elif action.to == to:
                own = action
            elif action.to in self._mailboxes:
                self._mailboxes[action.to].put(action)
        if self._core.driver_is_due:
            self._driver_is_due.set()
        else:
            self._driver_is_due.clear()
        return own

    # The driver

    def _serve_driver(self, channel: Channel) -> None:
        channel.send(Done())
        while (message := channel.receive(None)) is not None:
            try:
                answer = self._drive(message)
            except RefusedError as error:
                channel.send(Rejection(str(error)))
            else:
                state = answer.state if answer.tree is None else pack(answer.tree)
                channel.send(answer.message, answer.vector, state)

    def _drive(self, message: Message) -> SendReply:
        """Answer the driver: at once, or as late as the message allows."""
        if isinstance(message, Poll):
            self._driver_is_due.wait(message.wait_seconds)
        with self._lock:
            event = ReceivedMessage[Any](DRIVER, message)
            answer = self._deliver(self._core.handle(event, self._epoch + time.monotonic()), DRIVER)
        if not isinstance(answer, SendReply):
            raise _no_answer(f"the driver's {message!r}")
        return answer


def _no_answer(question: str) -> ParameterServerError:
    """Return the error for a request that the core has not answered, which is a defect."""
    return ParameterServerError(
        f"The parameter server has no answer, which is a defect in it. Received: {question}."
    )

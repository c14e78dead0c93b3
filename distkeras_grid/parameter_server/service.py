"""The server's sockets and threads: one thread for each connection."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

from distkeras_grid.errors import (
    AuthenticationError,
    ParameterServerError,
    ProtocolError,
    RefusedError,
)
from distkeras_grid.parameter_server.auth import NonceMemory, key_of, new_nonce, prove, verify
from distkeras_grid.parameter_server.channel import Channel
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.coordinator import Coordinator, Pending
from distkeras_grid.parameter_server.messages import (
    Center,
    Challenge,
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
    Goodbye,
    HandOver,
    Message,
    Poll,
    Proof,
    Ready,
    Refused,
    Resume,
    Side,
    Waiting,
    WindowCommit,
    WorkerHello,
    WorkerWelcome,
)
from distkeras_grid.parameter_server.settings import ServerAddress, ServerSettings
from distkeras_grid.parameter_server.state import Arrival, Session
from distkeras_grid.parameter_server.streams import Stream
from distkeras_grid.parameter_server.transports import Door, Listener
from distkeras_grid.weights import Vector, empty_vector

HANDSHAKE_SECONDS = 10.0
#: A client that waits for other seats hears so often that the server lives...
KEEPALIVE_SECONDS = 5.0
#: ...and the server looks so often whether the client does.
LOOK_SECONDS = 0.5
GOODBYE_SECONDS = 2.0
#: Connections that may exist beside one for each seat: the driver's, old attempts', strangers'.
SPARE_CONNECTIONS = 64
#: Characters; before authentication, when a frame ends at 1 KiB, the texts are all ours and short.
LONGEST_GOODBYE = 900


class Service:
    """Accepts connections and serves them.

    Parameters
    ----------
    settings : ServerSettings
        The run.
    center : ndarray
        The initial weights, shape ``(settings.size,)``, ``float32``; changes in place.
    key : bytes
        The run's key.
    doors : sequence of Door, optional
        Where clients come in; by default the sockets of the settings.

    Raises
    ------
    OSError
        If the address cannot be bound.
    """

    def __init__(
        self,
        settings: ServerSettings,
        center: Vector,
        key: bytes,
        doors: Sequence[Door] | None = None,
    ) -> None:
        self._settings = settings
        self._key = key
        self._nonces = NonceMemory()
        self._nonces_lock = threading.Lock()
        self._coordinator = Coordinator(settings, center)
        self._slots = threading.BoundedSemaphore(2 * settings.seats + SPARE_CONNECTIONS)
        self._listener: Listener | None = None
        if doors is None:
            self._listener = Listener(
                settings.bind_host, settings.port, settings.advertised_host, settings.port_retries
            )
            doors = self._listener.doors
        self._doors = doors
        for door in doors:
            threading.Thread(target=self._accept, args=(door,), daemon=True).start()

    @property
    def address(self) -> ServerAddress:
        """Where clients connect.

        Raises
        ------
        ParameterServerError
            If they come in by other doors than the settings' sockets.
        """
        if self._listener is None:
            raise ParameterServerError("The service listens on no socket: connect by its doors.")
        return self._listener.address

    def close(self) -> None:
        """Stop accepting connections."""
        for door in self._doors:
            door.close()
        if self._listener is not None:
            self._listener.close()

    def _accept(self, door: Door) -> None:
        while True:
            try:
                stream = door.accept()
            except OSError as error:
                # Out of file descriptors, or a client that left before it was accepted.
                sys.stderr.write(f"cannot accept a connection: {error}\n")
                time.sleep(0.1)
                continue
            if stream is None:
                return
            if not self._slots.acquire(blocking=False):
                sys.stderr.write("too many connections: one was turned away\n")
                stream.close()
                continue
            self._start_serving(stream)

    def _start_serving(self, stream: Stream) -> None:
        try:
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()
        except RuntimeError as error:
            # Out of threads for now; the client tries again.
            sys.stderr.write(f"cannot serve a connection: {error}\n")
            stream.close()
            self._slots.release()

    def _serve(self, stream: Stream) -> None:
        try:
            connection = Connection(
                Side.SERVER, self._settings.size, compression=self._settings.compression
            )
            with Channel(stream, connection) as channel:
                self._converse(channel)
        finally:
            self._slots.release()

    def _converse(self, channel: Channel) -> None:
        try:
            hello = self._authenticate(channel)
            if isinstance(hello, WorkerHello):
                self._serve_worker(channel, hello)
            elif isinstance(hello, DriverHello):
                self._serve_driver(channel)
        except ParameterServerError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            self._say_goodbye(channel, error)
        except OSError as error:
            # A worker's loss is an event of its own; nobody else is concerned.
            sys.stderr.write(f"a connection broke: {error}\n")

    def _say_goodbye(self, channel: Channel, error: ParameterServerError) -> None:
        name = ProtocolError if isinstance(error, ProtocolError) else type(error)
        try:
            channel.send(Goodbye(name.__name__, str(error)[:LONGEST_GOODBYE]))
        except OSError:
            return
        channel.close_after_goodbye(GOODBYE_SECONDS)

    def _authenticate(self, channel: Channel) -> Message | None:
        """Return the hello of a client that holds the key; None if it left."""
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        hello = channel.receive(HANDSHAKE_SECONDS)
        if not isinstance(hello, WorkerHello | DriverHello):
            return None
        with self._nonces_lock:
            self._nonces.check(hello.nonce)
        key, nonce = key_of(self._key, hello), new_nonce()
        channel.send(Challenge(nonce, prove(key, Side.SERVER, hello, nonce)))
        proof = channel.receive(max(0.001, deadline - time.monotonic()))
        if not isinstance(proof, Proof):
            return None
        verify(key, Side.CLIENT, hello, nonce, proof.proof)
        with self._nonces_lock:
            self._nonces.remember(hello.nonce)
        if hello.run != self._settings.run:
            raise AuthenticationError(
                f"This server belongs to run {self._settings.run!r}, not to {hello.run!r}."
            )
        if hello.size != self._settings.size:
            raise RefusedError(
                f"The run's vectors have {self._settings.size} numbers, the model here has"
                f" {hello.size}: driver and worker must build the same model."
            )
        return hello

    # Workers

    def _serve_worker(self, channel: Channel, hello: WorkerHello) -> None:
        session = self._coordinator.join(hello.seat, hello.attempt)
        try:
            channel.connection.vector = empty_vector(self._settings.size)
            channel.send(WorkerWelcome())
            going = True
            while going:
                message = channel.receive(None)
                going = message is not None and self._answer_worker(channel, session, message)
        finally:
            self._coordinator.lose(session)

    def _answer_worker(self, channel: Channel, session: Session, message: Message) -> bool:
        """Answer one message; return whether the conversation goes on."""
        vector = channel.connection.vector
        if isinstance(message, Ready) and vector is not None:
            return self._settle(channel, self._coordinator.ready(session, message, vector))
        if isinstance(message, Resume):
            channel.send(self._coordinator.resume(session))
            return True
        if isinstance(message, WindowCommit) and vector is not None:
            arrival = Arrival(session, message, channel.connection.frame_size)
            try:
                pending = self._coordinator.exchange(arrival, vector)
            except RefusedError as error:
                channel.send(Refused(str(error)))
                return True
            return self._settle(channel, pending)
        if isinstance(message, FetchStep | FetchState | HandOver) and vector is not None:
            return self._replay(channel, session, message, vector)
        if isinstance(message, Fail):
            self._coordinator.fail(session, message.error, message.message)
        if isinstance(message, Finish):
            self._coordinator.finish(session)
        channel.send(Done())
        return False

    def _replay(
        self,
        channel: Channel,
        session: Session,
        message: FetchStep | FetchState | HandOver,
        vector: Vector,
    ) -> bool:
        """Serve a worker that makes the steps itself."""
        try:
            if isinstance(message, FetchStep):
                step = self._coordinator.fetch_step(session, message.version, vector)
                channel.send(step, vector)
            elif isinstance(message, FetchState):
                part = self._coordinator.fetch_state(session, message.part, vector)
                channel.send(part, vector)
            else:
                self._coordinator.hand_over(session, message, vector)
                channel.send(Done())
        except RefusedError as error:
            channel.send(Refused(str(error)))
        return True

    def _settle(self, channel: Channel, pending: Pending) -> bool:
        """Wait for the answer and send it; meanwhile each side hears that the other lives."""
        told = time.monotonic()
        while (answer := self._coordinator.wait(pending, LOOK_SECONDS)) is None:
            if channel.peer_is_gone():
                return False
            if time.monotonic() - told > KEEPALIVE_SECONDS:
                channel.send(Waiting(*self._coordinator.presence(pending)))
                told = time.monotonic()
        empty = isinstance(answer, Exchanged) and self._coordinator.replies_are_empty
        channel.send(answer, None if empty else pending.vector)
        return True

    # The driver

    def _serve_driver(self, channel: Channel) -> None:
        channel.send(DriverWelcome())
        given: int | None = None
        while (message := channel.receive(None)) is not None:
            if given is not None:
                # Who asks the next thing has received the last one.
                self._coordinator.forget_snapshot(given)
            given = message.snapshot if isinstance(message, FetchCenter) else None
            try:
                self._answer_driver(channel, message)
            except RefusedError as error:
                channel.send(Refused(str(error)))

    def _answer_driver(self, channel: Channel, message: Message) -> None:
        if isinstance(message, Poll):
            channel.send(self._coordinator.update(message.seen))
        if isinstance(message, Command):
            self._coordinator.command(message.stop, message.learning_rate)
            channel.send(Done())
        if isinstance(message, FetchCenter):
            center, version = self._coordinator.fetch_center(message.snapshot, message.seat)
            channel.send(Center(version), center)

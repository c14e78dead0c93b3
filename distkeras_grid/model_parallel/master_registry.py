"""The driver's directory, which tells the devices where the master is.

Spark decides on which executor the master runs, and starts it elsewhere if it dies. So devices ask
the driver, whose address all tasks know. Batches do not pass through the driver.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, TypeVar

import msgspec
import numpy as np

from distkeras_grid.errors import RefusedError, RemoteProtocolError
from distkeras_grid.model_parallel.messages import (
    VOCABULARY,
    Acknowledgement,
    Announce,
    FetchModel,
    Locate,
    LocateReply,
    ModelArchive,
    Release,
    Report,
    Welcome,
)
from distkeras_grid.parameter_server.array_channel import BROKEN, ArrayChannel
from distkeras_grid.parameter_server.auth import new_nonce
from distkeras_grid.parameter_server.client_handshake import connect_and_authenticate
from distkeras_grid.parameter_server.listener import HandshakeListener
from distkeras_grid.parameter_server.messages import WorkerHello
from distkeras_grid.parameter_server.packed_bytes import as_bytes, as_numbers
from distkeras_grid.parameter_server.settings import BindAddress, ServerAddress
from distkeras_grid.parameter_server.timeouts import STALL_SECONDS
from distkeras_grid.parameter_server.transports import Listener, unreachable

_Answer = TypeVar("_Answer", bound=msgspec.Struct)
#: Number of the master among the devices.
MASTER = 0


class MasterRegistry:
    """The driver's record of the master; a context manager."""

    def __init__(
        self,
        place: BindAddress,
        key_of: Callable[[int], bytes],
        run: str,
        on_report: Callable[[Report], None],
        archives: Mapping[int, bytes] | None = None,
    ) -> None:
        self._on_report = on_report
        self._archives = archives or {}
        self._lock = threading.Lock()
        self._master: tuple[int, Announce] | None = None
        self._released = False
        listener = Listener(place.bind_host, place.port, place.advertised_host, place.port_retries)
        self._gate = HandshakeListener(listener, key_of, run, VOCABULARY, Welcome(), self._serve)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._gate.__exit__(*exception)

    @property
    def address(self) -> ServerAddress:
        """Address to which tasks connect."""
        return self._gate.address

    def _serve(self, hello: WorkerHello, channel: ArrayChannel) -> None:
        with channel, contextlib.suppress(*BROKEN):
            while (request := channel.receive(None)) is not None:
                if isinstance(request[0], FetchModel):
                    archive = np.frombuffer(self._archives.get(hello.seat, b""), np.uint8)
                    channel.send(ModelArchive(size=archive.size), [as_numbers(archive)])
                else:
                    channel.send(self._answer(hello, request[0]))

    def _answer(self, hello: WorkerHello, message: msgspec.Struct) -> msgspec.Struct:
        if isinstance(message, Locate):
            with self._lock:
                known, released = self._master, self._released
            if known is None:
                return LocateReply(released=released)
            at = known[1]
            return LocateReply(
                host=at.host, port=at.port, unix_path=at.unix_path, released=released
            )
        if hello.seat != MASTER:
            raise RefusedError(f"Only the master may say so. Received: {message!r}.")
        if isinstance(message, Announce):
            with self._lock:
                # An attempt that Spark has given up may still run.
                if self._master is None or hello.attempt >= self._master[0]:
                    self._master = hello.attempt, message
        elif isinstance(message, Release):
            with self._lock:
                if self._master is None or hello.attempt >= self._master[0]:
                    self._released = True
        elif isinstance(message, Report):
            self._on_report(message)
        return Acknowledgement()


@dataclass(frozen=True)
class RegistryAddress:
    """What a task needs to find the others; it travels in the task's closure."""

    run: str  # Name of the run
    # Returns the key of a number: to the master of each one, because it lets all of them in; in the
    # task of another device only of its own
    key_of: Callable[[int], bytes] = field(repr=False)
    directory: ServerAddress  # Where the driver's directory listens

    def connect(
        self, address: ServerAddress, number: int, attempt: int, seconds: float
    ) -> tuple[ArrayChannel, Welcome]:
        """Connect to an address, and prove that this task has the key of its number.

        `seconds`: time limit for connecting and proving [s].
        """
        hello = WorkerHello(self.run, number, attempt, 0, new_nonce())
        return connect_and_authenticate(
            address, VOCABULARY, self.key_of(number), hello, Welcome, seconds
        )

    @contextmanager
    def ask(self, number: int, attempt: int, seconds: float) -> Iterator[RegistryClient]:
        """Connect to the directory, as a context; arguments as in `connect`."""
        channel, _ = self.connect(self.directory, number, attempt, seconds)
        with channel:
            yield RegistryClient(channel, self.directory)


@dataclass(frozen=True)
class RegistryClient:
    """A connection to the directory."""

    channel: ArrayChannel
    address: ServerAddress

    def master(self) -> ServerAddress | None:
        """Return where the master is; None if that is not known yet."""
        reply = self._ask(Locate(), LocateReply)
        return (
            None if reply.host is None else ServerAddress(reply.host, reply.port, reply.unix_path)
        )

    def released(self) -> bool:
        """Return whether a master has released all devices, also for later attempts."""
        return self._ask(Locate(), LocateReply).released

    def model(self) -> bytes:
        """Return this device's part of the model, as an archive."""
        try:
            self.channel.send(FetchModel())
            reply = self.channel.receive(STALL_SECONDS)
        except OSError as error:
            raise unreachable(self.address, error) from error
        match reply:
            case ModelArchive(size=size), [numbers] if size:
                return as_bytes(numbers, size).tobytes()
        raise RemoteProtocolError(f"A part of the model is expected. Received: {reply!r:.200}.")

    def announce(self, address: ServerAddress) -> None:
        """Announce that this task is the master, and where it listens."""
        message = Announce(host=address.host, port=address.port, unix_path=address.unix_path)
        self._ask(message, Acknowledgement)

    def release(self) -> None:
        """Tell that this task needs no devices, nor do later attempts of it."""
        self._ask(Release(), Acknowledgement)

    def report(self, report: Report) -> None:
        """Send what the user should know."""
        self._ask(report, Acknowledgement)

    def _ask(self, message: msgspec.Struct, expected: type[_Answer]) -> _Answer:
        try:
            self.channel.send(message)
            return self.channel.expect(expected, STALL_SECONDS)
        except OSError as error:
            raise unreachable(self.address, error) from error

"""A relay at the server's address that reads frame headers and breaks connections where told.

"At frame type T, the k-th of seat s, after n bytes: reset, close, swallow, hold, duplicate, alter."
A frame is taken whole, with its seals, before its first byte is passed on, so what arrives of it is
exact.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

from distkeras_grid.parameter_server.encryption import SEAL_BYTES
from distkeras_grid.parameter_server.frames import HEADER_SIZE, decode_header, decode_message
from distkeras_grid.parameter_server.messages import DriverHello, Message, Proof, WorkerHello

#: What happens to a frame: both ends are reset or closed, the rest of the direction is thrown
#: away, the rest of the frame waits, the frame is sent twice, or the last bit of what still passes
#: is another one. With "call" something is done to the client, and the rest is thrown away.
Act = Literal["reset", "close", "swallow", "hold", "duplicate", "alter", "call"]
#: Stands for the driver where seats are named.
DRIVER = -1


@dataclass(frozen=True)
class Fault:
    """What happens to one frame."""

    kind: type[Message]
    act: Act
    # Which frame of that kind of that seat, from 1, over all its connections; 0 for each one
    nth: int = 1
    seat: int = 0  # Whose, or `DRIVER`
    after: float = 0  # Bytes that still pass; a share of the frame below 1
    seconds: float = 0.0  # How long "hold" waits
    call: Callable[[int], object] | None = None  # Called for "call" with the client's port


@dataclass(frozen=True)
class Moment:
    """Something that happens while one frame is passed on, whoever sends it."""

    frame: int  # Which frame, from 1, over all connections and in both directions
    share: float  # Share of its bytes that is passed on before
    act: Callable[[], object]  # What happens; the rest of the frame follows


@dataclass
class _Link:
    """One client's connection and that of the relay to the server."""

    port: int
    seat: int = DRIVER
    ending: Act = "close"
    sealed: bool = False


class Relay:
    """Stands between clients and a server; a context manager."""

    def __init__(self, server, *faults: Fault, moment: Moment | None = None) -> None:
        self._server = server
        self._moment = moment
        self._faults = list(faults)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.address = replace(server, host="127.0.0.1", port=self._port, unix_name=None)
        # Faults that have happened, in order.
        self.struck: list[Fault] = []
        # How many frames were passed on, in both directions.
        self.frames = 0
        # The last frame of each kind, as it came.
        self.passed: dict[type[Message], bytes] = {}
        self._counts: Counter[tuple[int, type[Message]]] = Counter()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._released = threading.Event()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._released.set()
        self.cut()
        self.refuse()

    def add(self, *faults: Fault) -> None:
        """Let faults happen from now on."""
        with self._lock:
            self._faults += faults

    def release(self) -> None:
        """Let go what is held."""
        self._released.set()

    def cut(self, act: Act = "close") -> None:
        """Break all connections now."""
        with self._lock:
            streams, self._open = self._open, []
        for stream in streams:
            _end(stream, act)

    def refuse(self, seconds: float | None = None) -> None:
        """Refuse connections from now on, for so many seconds where given."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if seconds is not None:
            timer = threading.Timer(seconds, self._listen_again)
            timer.daemon = True
            timer.start()

    def _listen_again(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._accept(self._listener)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, (_, port) = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((self._server.host, self._server.port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            link = _Link(port)
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(*ends, link), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while frame := _read_frame(source, link):
                header = decode_header(frame[:HEADER_SIZE])
                kind = header.message
                self.passed[kind] = frame
                if kind in (WorkerHello, DriverHello):
                    told = decode_message(header, frame[HEADER_SIZE:])
                    link.seat = getattr(told, "seat", DRIVER)
                link.sealed = link.sealed or kind is Proof
                if not self._send(frame, kind, link, source, target):
                    break
        for stream in (target, source):
            _end(stream, link.ending)

    def _send(
        self,
        frame: bytes,
        kind: type[Message],
        link: _Link,
        source: socket.socket,
        target: socket.socket,
    ) -> bool:
        """Send a frame, or what a fault leaves of it; return whether the direction goes on."""
        fault = self._fault_of(kind, link.seat)
        if fault is None:
            rest = self._rest_after_moment(frame, target)
            target.sendall(rest)
            return True
        passed = int(fault.after if fault.after >= 1 else fault.after * len(frame))
        if fault.act == "alter":
            target.sendall(frame[: passed - 1] + bytes([frame[passed - 1] ^ 1]) + frame[passed:])
            return True
        target.sendall(frame[:passed])
        if fault.act in ("reset", "close"):
            link.ending = fault.act
            return False
        if fault.call is not None:
            fault.call(link.port)
        if fault.act in ("swallow", "call"):
            while source.recv(1 << 16):
                pass
            return False
        if fault.act == "hold":
            self._released.wait(fault.seconds)
        target.sendall(frame[passed:])
        if fault.act == "duplicate":
            target.sendall(frame)
        return True

    def _rest_after_moment(self, frame: bytes, target: socket.socket) -> bytes:
        """Count a frame; if its moment has come, send a share and act. Return what is left."""
        with self._lock:
            self.frames += 1
            moment = self._moment
            if moment is None or self.frames != moment.frame:
                return frame
        passed = int(moment.share * len(frame))
        target.sendall(frame[:passed])
        moment.act()
        return frame[passed:]

    def _fault_of(self, kind: type[Message], seat: int) -> Fault | None:
        with self._lock:
            self._counts[seat, kind] += 1
            for fault in self._faults:
                told = (fault.kind, fault.seat) == (kind, seat)
                if told and fault.nth in (0, self._counts[seat, kind]):
                    self.struck.append(fault)
                    return fault
        return None


def _read_frame(source: socket.socket, link: _Link) -> bytes:
    head = _read(source, HEADER_SIZE)
    if len(head) < HEADER_SIZE:
        return b""
    header = decode_header(head)
    seals = SEAL_BYTES * (2 if header.payload else 1) if link.sealed else 0
    return head + _read(source, header.length + header.payload + seals)


def _read(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := source.recv(count - len(data))):
        data += part
    return data


def _end(stream: socket.socket, act: Act) -> None:
    with contextlib.suppress(OSError):
        if act == "reset":
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # A thread that waits in recv() keeps the socket open, and has to be woken.
        stream.shutdown(socket.SHUT_RD if act == "reset" else socket.SHUT_RDWR)
        stream.close()

"""Where streams come from: TCP sockets between hosts, Unix sockets on one host.

A route is one way to a server; an acceptor is where the server accepts clients. This is the only
module that opens sockets.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, TypeAlias

from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.parameter_server.settings import BindAddress, ServerAddress
from distkeras_grid.parameter_server.streams import SocketStream
from distkeras_grid.parameter_server.timeouts import (
    LOOK_SECONDS,
    PAUSE_SECONDS,
    STALL_SECONDS,
)

_BACKLOG = 256
#: What Linux knows of the process at the other end of a Unix socket: its number, user and group.
_CREDENTIALS = struct.Struct("iII")


#: One way to a server: returns a connected stream, in at most so many seconds.
Route: TypeAlias = Callable[[float], SocketStream]


def connect_tcp(host: str, port: int, seconds: float) -> SocketStream:
    """Connect to a host and port; its addresses share the time, so no silent one uses it up."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    share = max(0.001, seconds / max(1, len(addresses)))
    # It tries the same addresses one after the other, each for this long.
    return _stream_of(socket.create_connection((host, port), share))


def connect_unix(name: str, seconds: float) -> SocketStream:
    """Connect to a Unix socket of this user on this host, by its abstract name (Linux)."""
    with contextlib.ExitStack() as opened:
        unix = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        # Zero would mean not to wait at all.
        unix.settimeout(max(0.001, seconds))
        unix.connect(name)
        if not _is_of_this_user(unix):
            raise PermissionError(errno.EACCES, "a process of another user listens there")
        opened.pop_all()
    return _stream_of(unix)


def _is_of_this_user(unix: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket belongs to this user.

    An abstract name has no permissions: after a server has died, another user could listen at its
    name, connect to its successor, and pass on what both send. Nothing on a Unix socket is
    encrypted.
    """
    peer = unix.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(peer)[1] == os.geteuid())


def _stream_of(connected: socket.socket) -> SocketStream:
    try:
        return SocketStream(connected)
    except OSError:
        # The other side has reset it already.
        connected.close()
        raise


class SocketAcceptor:
    """A listening socket, and the thread that accepts from it.

    Only that thread closes the socket: another one could close it just before `accept`, which would
    then accept from whatever has its descriptor by then.

    `welcome`: called with each client, in this thread.
    """

    def __init__(self, listening: socket.socket, welcome: Callable[[SocketStream], None]) -> None:
        listening.setblocking(False)
        self._listening, self._welcome = listening, welcome
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept_all, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._closed.set()
        # On Linux the thread hears it; elsewhere it looks soon.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(STALL_SECONDS)

    def _accept_all(self) -> None:
        """Accept clients; a failure costs one client, and the next one is accepted."""
        ready = select.poll()
        ready.register(self._listening, select.POLLIN)
        with self._listening:
            while not self._closed.is_set():
                ready.poll(LOOK_SECONDS * 1000)
                if self._closed.is_set():
                    # `accept` with a timeout would spin: a Unix socket that is shut down is ready,
                    # and has nobody to accept.
                    return
                try:
                    connected = self._listening.accept()[0]
                    connected.setblocking(True)
                    # A Unix socket turns other users away.
                    if connected.family == socket.AF_UNIX and not _is_of_this_user(connected):
                        connected.close()
                    else:
                        self._welcome(_stream_of(connected))
                except BlockingIOError:
                    # Nobody came, or who came has left.
                    continue
                except (OSError, MemoryError) as error:
                    if self._closed.is_set():
                        return
                    # Out of file descriptors, or a client that left before it was accepted.
                    sys.stderr.write(f"cannot accept a connection: {error}\n")
                    time.sleep(PAUSE_SECONDS)


def listen(bind_host: str, port: int, port_retries: int = 0) -> socket.socket:
    """Return a socket that listens for TCP connections."""
    family, _, _, _, target = socket.getaddrinfo(
        bind_host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    try:
        return socket.create_server(target[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port_retries or not 0 < port < 65535:
            raise
    return listen(bind_host, port + 1, port_retries - 1)


def own_address(host: str, port: int) -> str:
    """Return this host's address on the way to another one; nothing is sent.

    Examples
    --------
    >>> own_address("127.0.0.1", 7077)
    '127.0.0.1'
    """
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as towards:
        # A datagram socket only looks up the route.
        towards.connect(target)
        return str(towards.getsockname()[0])


def cannot_listen(bind_host: str, port: int, port_retries: int, error: OSError) -> str:
    """Return the message for an address that `listen` could not bind.

    Examples
    --------
    >>> print(cannot_listen("10.0.0.5", 7000, 16, OSError(98, "Address already in use"))[:67])
    The driver cannot listen on 10.0.0.5:7000 or the 16 ports after it:
    """
    ports = f" or the {port_retries} ports after it" if port and port_retries else ""
    return (
        f"The driver cannot listen on {bind_host}:{port}{ports}: {error}. Choose another port "
        "(master_port, 0 takes a free one) or another address of this host "
        "(spark.driver.bindAddress)."
    )


class TokenServer:
    """Answers each connection with one token, until it is closed; a probe connects to it.

    `token`: the token, which a client can receive only here.
    """

    def __init__(self, bind_host: str, port: int, port_retries: int = 0) -> None:
        listening = listen(bind_host, port, port_retries)
        self.port: int = listening.getsockname()[1]
        self.token = secrets.token_hex(16)
        self._door = SocketAcceptor(listening, self._answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._door.close()

    def _answer(self, stream: SocketStream) -> None:
        # The token always fits in the send buffer, so no client can make this thread wait.
        with contextlib.closing(stream), contextlib.suppress(OSError):
            stream.send([memoryview(self.token.encode("ascii"))], time.monotonic() + 1.0)


class Listener:
    """A server's listening sockets: TCP and, if it can be, a Unix socket.

    The Unix socket has an abstract name, which only Linux knows (unix(7)). It has no file, so a
    process that is killed leaves nothing behind.
    """

    def __init__(
        self,
        place: BindAddress,
        slots: threading.BoundedSemaphore,
        serve: Callable[[SocketStream], None],
    ) -> None:
        """Let `serve` serve each client in a thread of its own, and release a slot afterwards."""
        self._slots, self._serve = slots, serve
        tcp = listen(place.bind_host, place.port, place.port_retries)
        port = tcp.getsockname()[1]
        name = f"\0dkg-{secrets.token_hex(16)}"
        unix = _listen_at(name)
        self.address = ServerAddress(place.advertised_host, port, None if unix is None else name)
        self._doors = [SocketAcceptor(each, self._welcome) for each in (tcp, unix) if each]

    def close(self) -> None:
        """Stop listening."""
        for door in self._doors:
            door.close()

    def _welcome(self, stream: SocketStream) -> None:
        if not self._slots.acquire(blocking=False):
            sys.stderr.write("too many connections: one was turned away\n")
            stream.close()
            return
        try:
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()
        except RuntimeError as error:
            # Out of threads for now; the client tries again.
            sys.stderr.write(f"cannot serve a connection: {error}\n")
            stream.close()
            self._slots.release()


def _listen_at(name: str) -> socket.socket | None:
    """Return a listening Unix socket; None where there can be none.

    Some sandboxes have no Unix sockets. Then clients on this host come by TCP, too.
    """
    if sys.platform != "linux":
        return None
    with contextlib.ExitStack() as opened:
        try:
            unix = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            unix.bind(name)
            unix.listen(_BACKLOG)
        except OSError:
            return None
        opened.pop_all()
        return unix


def routes(address: ServerAddress) -> Sequence[Route]:
    """Return the ways to a server, the fastest first: its Unix socket, then TCP.

    Only connecting shows whether somebody listens at an abstract name. It is the right one only if
    the other end proves that it has the run's key.
    """
    tcp = partial(connect_tcp, address.host, address.port)
    if address.unix_name is None or sys.platform != "linux":
        return (tcp,)
    return (partial(connect_unix, address.unix_name), tcp)


def unreachable(address: ServerAddress, error: OSError) -> ServerUnreachableError:
    """Return the error for a connection that cannot be made or broke."""
    return ServerUnreachableError(
        f"{socket.gethostname()} has no connection to the parameter server at {address}:"
        f" {error!s} ({type(error).__name__}). Check that the driver still runs, and that"
        " spark.driver.host and the port are open to the executors."
    )

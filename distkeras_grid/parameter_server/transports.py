"""Sockets: the one module that opens them. TCP between hosts, a Unix socket on the same host.

Vectors go out from, and come in to, the caller's own memory. Every wait has an end: connecting and
authenticating have a deadline, a message that has begun has one for all of it, however slowly its
bytes trickle, and TCP keepalive ends the wait for a peer whose host has vanished.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.messages import Message
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.weights import Vector

#: A message that has begun is complete after so long, and its vector's time on a slow line.
STALL_SECONDS = 60.0
#: Bytes a second of the slowest line on which a run makes sense: 16 workers on 2 Mbit/s.
SLOWEST_LINE = 16 * 1024
#: Seconds of silence after which TCP asks whether the peer's host lives, and between and times of
#: asking: a dead host is noticed after a minute.
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPALIVE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
)
#: Longest path of a Unix socket, bytes (macOS; Linux allows four more).
_LONGEST_UNIX_PATH = 103
_BACKLOG = 256
#: Bytes. With Linux' default, 208 KiB, both ends of a Unix socket switch more often: exchanges of
#: 20 MB took 11.0 instead of 9.4 ms. TCP tunes its own buffers, and worse if it is told a size.
_UNIX_BUFFER = 1 << 20


class Channel:
    """A connected socket and its end of the protocol.

    Parameters
    ----------
    stream : socket
        Connected; closed with the channel.
    connection : Connection
        The protocol's state.
    """

    def __init__(self, stream: socket.socket, connection: Connection) -> None:
        self.connection = connection
        self._stream = stream
        stream.settimeout(STALL_SECONDS)
        if stream.family == socket.AF_UNIX:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BUFFER)
        else:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, seconds in _KEEPALIVE:
                if hasattr(socket, name):
                    stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(self, message: Message, vector: Vector | None = None) -> None:
        """Send a message, and the vector it carries.

        Parameters
        ----------
        message : Message
            Must be legal now.
        vector : ndarray, optional
            Contiguous, ``float32``.

        Raises
        ------
        LocalProtocolError
            If the message is not legal now.
        OSError
            If the peer is gone, or has not taken all of it in time.
        """
        payload = memoryview(b"")
        if vector is not None:
            payload = self.connection.packed(type(message), vector)
        parts = [memoryview(self.connection.send(message, len(payload))), payload]
        deadline = time.monotonic() + STALL_SECONDS + len(payload) / SLOWEST_LINE
        while parts:
            self._limit(deadline)
            sent = self._stream.sendmsg(parts)
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]

    def receive(self, seconds: float | None) -> Message | None:
        """Receive a message; its vector lands in ``connection.vector``.

        Parameters
        ----------
        seconds : float or None
            How long the whole message may take; a vector has the time of `SLOWEST_LINE` besides.
            None waits for its first byte without end, and trusts TCP keepalive, and on the same
            host the kernel, to end the wait when the peer is gone.

        Returns
        -------
        Message or None
            None if the peer has closed the connection between two messages.

        Raises
        ------
        RemoteProtocolError
            If the peer breaks the protocol.
        OSError
            If the connection breaks, within a message too; TimeoutError if the message is not
            complete in time, however slowly its bytes trickle in.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        announced = 0
        while True:
            self._limit(deadline, announced)
            count = self._stream.recv_into(self.connection.wanted())
            if count == 0:
                if self.connection.mid_frame:
                    raise ConnectionResetError("the other side closed it within a message")
                return None
            message = self.connection.received(count)
            if message is not None:
                return message
            if deadline is None:
                deadline = time.monotonic() + STALL_SECONDS
            announced = self.connection.announced

    def peer_is_gone(self) -> bool:
        """Whether the peer, whose turn it is not, has closed the connection."""
        self._stream.settimeout(0.0)
        try:
            return not self._stream.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def _limit(self, deadline: float | None, announced: int = 0) -> None:
        """Let the next call on the socket end at a moment on the monotonic clock.

        Raises
        ------
        TimeoutError
            If that has passed.
        """
        if deadline is None:
            self._stream.settimeout(None)
            return
        left = deadline - time.monotonic() + announced / SLOWEST_LINE
        if left <= 0:
            raise TimeoutError("timed out")
        # Each setting is a system call, and a vector comes in ten pieces or more.
        now = self._stream.gettimeout()
        if now is None or not 0.9 * now < left < 1.1 * now:
            self._stream.settimeout(left)

    def close_after_goodbye(self, seconds: float) -> None:
        """Close once the peer has had time to read the last message.

        Closing a socket with unread bytes makes the kernel drop what was sent last, so what the
        peer still sends is read and thrown away, for `seconds` at most.
        """
        deadline = time.monotonic() + seconds
        scratch = bytearray(1 << 16)
        with contextlib.suppress(OSError), self:
            self._stream.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline:
                self._stream.settimeout(max(0.001, deadline - time.monotonic()))
                if not self._stream.recv_into(scratch):
                    return


def listen(bind_host: str, port: int, port_retries: int = 0) -> socket.socket:
    """Return a socket that listens for TCP connections.

    Parameters
    ----------
    bind_host, port : str, int
        The address; port 0 takes a free one.
    port_retries : int, default 0
        How many ports after `port` are tried while they are taken.

    Raises
    ------
    OSError
        If the address cannot be bound.
    """
    family, _, _, _, target = socket.getaddrinfo(
        bind_host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    try:
        return socket.create_server(target[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port_retries or not 0 < port < 65535:
            raise
    return listen(bind_host, port + 1, port_retries - 1)


def cannot_listen(bind_host: str, port: int, port_retries: int, error: OSError) -> str:
    """Return the words for an address that `listen` could not bind.

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
    """Answers each connection with one token, until closed: what a probe connects to.

    Parameters
    ----------
    bind_host, port, port_retries
        See `listen`.

    Attributes
    ----------
    port : int
        Where it listens.
    token : str
        What whoever connects here receives, and nowhere else.

    Raises
    ------
    OSError
        If the address cannot be bound.
    """

    def __init__(self, bind_host: str, port: int, port_retries: int = 0) -> None:
        self._socket = listen(bind_host, port, port_retries)
        self.port: int = self._socket.getsockname()[1]
        self.token = secrets.token_hex(16)
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        # Closing alone leaves the thread in accept().
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(STALL_SECONDS)
        self._socket.close()

    def _answer(self) -> None:
        while True:
            try:
                stream, _ = self._socket.accept()
            except OSError:
                return
            # Some bytes always fit the send buffer, so nobody can make this thread wait.
            with stream, contextlib.suppress(OSError):
                stream.settimeout(1.0)
                stream.sendall(self.token.encode("ascii"))


class Listener:
    """A server's listening sockets: TCP, and a Unix socket in a directory of its own.

    Parameters
    ----------
    bind_host, port : str, int
        Address for TCP; port 0 takes a free one.
    advertised_host : str
        Host that clients are told.
    port_retries : int, default 0
        See `listen`.

    Attributes
    ----------
    address : ServerAddress
        Where clients connect.
    sockets : list of socket
        To accept from.

    Raises
    ------
    OSError
        If the address cannot be bound.
    """

    def __init__(
        self, bind_host: str, port: int, advertised_host: str, port_retries: int = 0
    ) -> None:
        tcp = listen(bind_host, port, port_retries)
        self.sockets = [tcp]
        self._directory = tempfile.mkdtemp(prefix="dkg-")
        path = os.path.join(self._directory, "server")
        if len(os.fsencode(path)) <= _LONGEST_UNIX_PATH:
            unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            unix.bind(path)
            unix.listen(_BACKLOG)
            self.sockets.append(unix)
        else:
            path = ""
        self.address = ServerAddress(advertised_host, tcp.getsockname()[1], path or None)

    def close(self) -> None:
        """Stop listening and remove the Unix socket."""
        for listening in self.sockets:
            # Closing alone leaves a thread that waits in accept() to take one more connection.
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def routes(address: ServerAddress) -> Iterator[Callable[[float], socket.socket]]:
    """Yield the ways to a server, the quickest first: its Unix socket if here is one, then TCP.

    Another host, or another user's process, may have a path that only looks the same: where the
    Unix socket leads is known only when the other end has proven the run's key.

    Parameters
    ----------
    address : ServerAddress
        Where the server is.

    Yields
    ------
    callable
        Gets the seconds allowed, and returns a connected socket or raises OSError.
    """
    path = address.unix_path
    if path and os.path.exists(path):
        yield lambda seconds: _connect_unix(path, seconds)
    yield lambda seconds: socket.create_connection((address.host, address.port), timeout=seconds)


def _connect_unix(path: str, seconds: float) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.settimeout(seconds)
        stream.connect(path)
    except OSError:
        stream.close()
        raise
    return stream


def unreachable(address: ServerAddress, error: OSError) -> ServerUnreachableError:
    """Return the error for a connection that cannot be made or broke."""
    return ServerUnreachableError(
        f"{socket.gethostname()} has no connection to the parameter server at {address}:"
        f" {error!s} ({type(error).__name__}). Check that the driver still runs, and that"
        " spark.driver.host and the port are open to the executors."
    )

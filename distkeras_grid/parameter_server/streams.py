"""One end of a connection: bytes in order, both ways.

A Unix socket also passes files, and with them memory that both ends share.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Sequence
from typing import Literal, TypeAlias

#: How vectors travel between a worker and the server; empty if nobody tells.
TransportName: TypeAlias = Literal["", "tcp", "unix socket", "shared memory"]

#: Seconds of silence before TCP's first probe of the peer's host, seconds between probes, and
#: number of probes: a dead host is noticed after a minute.
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPALIVE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
)
#: Bytes. With Linux' default, 208 KiB, both ends of a Unix socket switch more often: exchanges of
#: 20 MB took 11.0 instead of 9.4 ms. TCP tunes its own buffers, and does worse with a fixed size.
_UNIX_BUFFER = 1 << 20
#: Descriptor of a file that is passed.
_FILE = struct.Struct("@i")


class SocketStream:
    """A connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        if connected.family == socket.AF_UNIX:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BUFFER)
            return
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in _KEEPALIVE:
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)

    @property
    def private(self) -> bool:
        """Whether this is a Unix socket: it passes files, and no bytes leave this host's kernel."""
        return self._socket.family == socket.AF_UNIX

    @property
    def transport(self) -> TransportName:
        """What carries the bytes."""
        return "unix socket" if self.private else "tcp"

    def send_file(self, file: int, seconds: float) -> None:
        """Send a byte, and with it the descriptor of a file, which stays open here."""
        self._set_timeout(seconds)
        socket.send_fds(self._socket, [b"\0"], [file])

    def receive_file(self, seconds: float | None) -> tuple[int, int | None]:
        """Receive a byte, and with it a file if one comes."""
        self._set_timeout(seconds)
        # Not socket.recv_fds, which ignores the flag: the file is of this process alone. There is
        # room for one. Files come by Unix sockets, and so on Linux only, which has the flag.
        room = socket.CMSG_LEN(_FILE.size)
        data, passed, _, _ = self._socket.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in passed:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                return len(data), _FILE.unpack(content)[0]
        return len(data), None

    def send(self, parts: Sequence[memoryview], deadline: float) -> None:
        """Send all bytes of the parts before a moment on the monotonic clock."""
        left = list(filter(None, parts))
        while left:
            self._set_timeout(seconds_left(deadline))
            try:
                sent = self._socket.sendmsg(left)
            except TimeoutError:
                # Another thread that receives here may have set a shorter one on the socket.
                if time.monotonic() >= deadline:
                    raise
                continue
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]

    def receive_into(self, target: memoryview, seconds: float | None) -> int:
        """Receive at least a byte; return how many, 0 if the peer has closed."""
        self._set_timeout(seconds)
        return self._socket.recv_into(target)

    def ended(self) -> bool:
        """Whether the peer has closed and all it sent has been received."""
        self._socket.settimeout(0.0)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    def finish_sending(self) -> None:
        """Tell the peer that nothing more comes."""
        self._socket.shutdown(socket.SHUT_WR)

    def interrupt(self) -> None:
        """Let other threads that wait here go on: nothing more comes or goes."""
        # Closing alone would leave them waiting. The peer may have closed already.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; bytes in transit to the peer may be lost."""
        self._socket.close()

    def _set_timeout(self, seconds: float | None) -> None:
        # Each setting is a system call, and a vector arrives in ten pieces or more.
        now = self._socket.gettimeout()
        if seconds is None or now is None or not 0.9 * now < seconds < 1.1 * now:
            self._socket.settimeout(seconds)


def seconds_left(deadline: float) -> float:
    """Return the seconds until a moment on the monotonic clock."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left

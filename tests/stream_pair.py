"""Two ends of a connection within one process."""

from __future__ import annotations

import socket

from distkeras_grid.parameter_server.streams import SocketStream


def stream_pair() -> tuple[SocketStream, SocketStream]:
    """Return both ends of a pair of connected Unix sockets."""
    ours, theirs = socket.socketpair()
    return SocketStream(ours), SocketStream(theirs)

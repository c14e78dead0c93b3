"""Accepts clients at a door, and serves each in a thread of its own."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from distkeras_grid.parameter_server.streams import SocketStream
from distkeras_grid.parameter_server.timeouts import PAUSE_SECONDS
from distkeras_grid.parameter_server.transports import SocketAcceptor


def accept_all(
    door: SocketAcceptor, slots: threading.BoundedSemaphore, serve: Callable[[SocketStream], None]
) -> None:
    """Accept clients until the door is closed.

    A failure costs one client, and the next one is accepted.
    """
    while True:
        try:
            stream = door.accept()
        except OSError as error:
            # Out of file descriptors, or a client that left before it was accepted.
            sys.stderr.write(f"cannot accept a connection: {error}\n")
            time.sleep(PAUSE_SECONDS)
            continue
        if stream is None:
            return
        if not slots.acquire(blocking=False):
            sys.stderr.write("too many connections: one was turned away\n")
            stream.close()
            continue
        try:
            threading.Thread(target=serve, args=(stream,), daemon=True).start()
        except RuntimeError as error:
            # Out of threads for now; the client tries again.
            sys.stderr.write(f"cannot serve a connection: {error}\n")
            stream.close()
            slots.release()

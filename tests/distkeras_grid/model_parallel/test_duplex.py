"""Both directions of a line end together, whichever ends it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from distkeras_grid.errors import ParameterServerError
from distkeras_grid.model_parallel.duplex import Duplex
from distkeras_grid.model_parallel.messages import Echo
from distkeras_grid.model_parallel.wire import ArrayChannel
from distkeras_grid.parameter_server.streams import SocketStream

LARGE = np.zeros(4_000_000, np.float32)


class Watched(SocketStream):
    """A socket that tells whether it was closed while a thread was in it.

    The system gives the number of a closed socket to the next file at once, and the thread may wait
    on that one.
    """

    def __init__(self, connected):
        super().__init__(connected)
        self.inside, self.closed, self.closed_within = 0, threading.Event(), False

    @contextlib.contextmanager
    def _within(self):
        self.inside += 1
        try:
            yield
        finally:
            # A thread of a busy machine takes a while to get out.
            time.sleep(0.05)
            self.inside -= 1

    def send(self, parts, seconds):
        with self._within():
            return super().send(parts, seconds)

    def receive_into(self, target, seconds):
        with self._within():
            return super().receive_into(target, seconds)

    def close(self):
        self.closed_within = self.closed_within or self.inside > 0
        super().close()
        self.closed.set()


@pytest.fixture
def line():
    """A line whose peer is silent, and the words of its end."""
    one, other = socket.socketpair()
    with other:
        stream = Watched(one)
        channel = ArrayChannel(stream)
        channel.proven = True
        ends = []
        duplex = Duplex(channel, lambda *_: None, ends.append)
        duplex.start()
        yield duplex, stream, other, ends


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("how", ["close", "finish", "peer"])
def test_it_is_closed_when_no_thread_uses_it_any_more(line, sends, how):
    duplex, stream, other, ends = line
    if sends:
        # More than a socket takes: the sending thread waits for the peer.
        duplex.send(Echo(), [LARGE])
    while not stream.inside:
        time.sleep(0.01)
    if how == "close":
        duplex.close()
    elif how == "finish":
        duplex.finish(0.1)
    else:
        other.close()
    assert stream.closed.wait(5.0)
    assert not stream.closed_within
    for _ in range(500):
        if ends:
            break
        time.sleep(0.01)
    (end,) = ends
    assert end is None or isinstance(end, (OSError, ParameterServerError))

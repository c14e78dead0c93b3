"""Both directions of a line end together, whichever ends it."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading

import numpy as np
import pytest

from distkeras_grid.errors import ParameterServerError
from distkeras_grid.model_parallel.duplex_channel import Duplex
from distkeras_grid.model_parallel.messages import VOCABULARY, Echo
from distkeras_grid.parameter_server.array_channel import ArrayChannel
from distkeras_grid.parameter_server.streams import SocketStream

LARGE = np.zeros(4_000_000, np.float32)


class Watched(SocketStream):
    """A socket that tells whether it was closed while a thread used it."""

    def __init__(self, connected):
        super().__init__(connected)
        self.changed = threading.Condition()
        self.using, self.closed, self.closed_within = 0, threading.Event(), False

    @contextlib.contextmanager
    def _used(self):
        with self.changed:
            self.using += 1
            self.changed.notify_all()
        try:
            yield
        finally:
            # A thread of a busy machine takes a while to get out. Who does not wait for it has
            # closed the socket by then.
            self.closed.wait(0.05)
            with self.changed:
                self.using -= 1

    def send(self, parts, seconds):
        with self._used():
            return super().send(parts, seconds)

    def receive_into(self, target, seconds):
        with self._used():
            return super().receive_into(target, seconds)

    def close(self):
        with self.changed:
            self.closed_within = self.closed_within or self.using > 0
        super().close()
        self.closed.set()


@pytest.fixture
def line():
    """A line whose peer is silent, its two ends, and what is told at its end."""
    one, other = socket.socketpair()
    with other:
        stream = Watched(one)
        channel = ArrayChannel(stream, VOCABULARY)
        channel.proven = True
        ends = queue.SimpleQueue()
        duplex = Duplex(channel, lambda *_: None, ends.put)
        duplex.start()
        yield duplex, stream, other, ends


def both(duplex):
    """End a line twice at once, as a lost device and the end of a run do."""
    thread = threading.Thread(target=duplex.finish, args=(0.1,))
    thread.start()
    duplex.close()
    duplex.close()
    thread.join(5)
    assert not thread.is_alive()


ENDS = {
    "close": lambda duplex, _: duplex.close(),
    "finish": lambda duplex, _: duplex.finish(0.1),
    "both": lambda duplex, _: both(duplex),
    "peer": lambda _, other: other.close(),
}


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("how", ENDS)
def test_it_is_closed_when_no_thread_uses_it_any_more(line, sends, how):
    duplex, stream, other, ends = line
    if sends:
        # More than a socket takes: the sending thread waits for the peer.
        duplex.send(Echo(), [LARGE])
    with stream.changed:
        assert stream.changed.wait_for(lambda: stream.using > sends, 5)
    ENDS[how](duplex, other)
    assert stream.closed.wait(5)
    assert not stream.closed_within
    end = ends.get(timeout=5)
    assert end is None or isinstance(end, (OSError, ParameterServerError))
    assert ends.empty()

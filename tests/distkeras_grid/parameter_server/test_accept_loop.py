"""What fails at a door costs one client and no more."""

from __future__ import annotations

import threading

import pytest

from distkeras_grid.parameter_server import transports
from distkeras_grid.parameter_server.transports import accept_all


class Stream:
    closed = False

    def close(self):
        self.closed = True


class Door:
    """Lets in what a list says: a stream, an error, and in the end nobody."""

    def __init__(self, *arrivals):
        self._arrivals = list(arrivals)

    def accept(self):
        if not self._arrivals:
            return None
        arrival = self._arrivals.pop(0)
        if isinstance(arrival, OSError):
            raise arrival
        return arrival


@pytest.fixture
def served():
    return []


@pytest.fixture
def accepts(served, tools):
    def accept(*arrivals, slots=8):
        free = threading.BoundedSemaphore(slots)
        accept_all(Door(*arrivals), free, served.append)
        return free

    return accept


def test_an_error_costs_a_pause(accepts, served, tools, monkeypatch, capsys):
    """Without file descriptors every accept fails at once; without a pause that would spin."""
    pauses = []
    monkeypatch.setattr(transports.time, "sleep", pauses.append)
    stream = Stream()
    accepts(OSError(24, "Too many open files"), OSError(24, "Too many open files"), stream)
    tools.wait_until(lambda: served == [stream])
    assert pauses == [transports.PAUSE_SECONDS] * 2
    assert "Too many open files" in capsys.readouterr().err


def test_without_a_thread_the_client_is_sent_away(accepts, served, tools, monkeypatch):
    first, second = Stream(), Stream()
    start, failed = threading.Thread.start, []

    def fail_once(self):
        if not failed:
            failed.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    free = accepts(first, second, slots=1)
    tools.wait_until(lambda: served == [second])
    assert (first.closed, second.closed) == (True, False)
    # The slot of the first one was free again, and the second one's is its own to release.
    assert not free.acquire(blocking=False)


def test_more_clients_than_slots_are_turned_away(accepts, served, tools):
    streams = [Stream() for _ in range(3)]
    accepts(*streams, slots=2)
    tools.wait_until(lambda: len(served) == 2)
    assert [stream.closed for stream in streams] == [False, False, True]

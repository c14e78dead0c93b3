"""Calls of a master, and the end of a connection, whichever end ends it."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading

import numpy as np
import pytest

from distkeras_grid.errors import (
    ParameterServerError,
    RemoteProtocolError,
    ServerUnreachableError,
    StartTimeoutError,
    WorkerFailedError,
)
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.rpc import Duplex, serve
from distkeras_grid.model_parallel.wire import ArrayChannel
from distkeras_grid.parameter_server.streams import SocketStream
from distkeras_grid.spec import LimitsSpec
from tests.distkeras_grid.model_parallel.helpers import PATIENT, group_of
from tests.stream_pair import stream_pair

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
def silent(monkeypatch):
    """A channel whose peer is silent, its two ends, and what is told at its end."""
    monkeypatch.setattr("distkeras_grid.model_parallel.rpc.FINISH_SECONDS", 0.1)
    one, other = socket.socketpair()
    with other:
        stream = Watched(one)
        ends = queue.SimpleQueue()
        duplex = Duplex(ArrayChannel(stream), lambda _: None, ends.put)
        duplex.start()
        yield duplex, stream, other, ends


def both(duplex):
    """End a connection twice at once, as a lost device and the end of a run do."""
    thread = threading.Thread(target=duplex.finish)
    thread.start()
    duplex.close()
    duplex.close()
    thread.join(5)
    assert not thread.is_alive()


ENDS = {
    "close": lambda duplex, _: duplex.close(),
    "finish": lambda duplex, _: duplex.finish(),
    "both": lambda duplex, _: both(duplex),
    "peer": lambda _, other: other.close(),
}


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("how", ENDS)
def test_it_is_closed_when_no_thread_uses_it_any_more(silent, sends, how):
    duplex, stream, other, ends = silent
    if sends:
        # More than a socket takes: the sending thread waits for the peer.
        duplex.send("echo", {}, [LARGE])
    with stream.changed:
        assert stream.changed.wait_for(lambda: stream.using > sends, 5)
    ENDS[how](duplex, other)
    assert stream.closed.wait(5)
    assert not stream.closed_within
    end = ends.get(timeout=5)
    assert end is None or isinstance(end, (OSError, ParameterServerError))
    assert ends.empty()


class Adds:
    """A device that adds numbers, and waits or fails if it is asked to."""

    CALLS = frozenset({"add", "twice", "wait", "fail"})

    def __init__(self):
        self.over = threading.Event()

    def add(self, x, more):
        yield [x + np.float32(more)]

    def twice(self, x):
        yield [x]
        yield [2 * x]

    def wait(self):
        self.over.wait(60)
        yield []

    def fail(self):
        raise ZeroDivisionError("no number")
        yield []


X = np.arange(3, dtype=np.float32)


def test_a_device_answers_in_the_order_of_the_calls():
    with group_of([Adds(), Adds()]) as group:
        futures = group.call(1, "twice", X, answers=2) + group.call(1, "add", X, more=5)
        found = [group.result(future)[1][0] for future in futures]
        np.testing.assert_array_equal(found, [X, 2 * X, X + 5])
        arrays = group.each("add", [X, 2 * X], more=1)
        np.testing.assert_array_equal([array for (array,) in arrays], [X + 1, 2 * X + 1])
        assert group.moved > 0
        assert group.lost is None


@pytest.mark.parametrize(
    ("name", "raised", "error", "why"),
    [
        # An error of the user's code ends the run, as on every worker; others may heal.
        ("fail", ZeroDivisionError, WorkerFailedError, "has failed: ZeroDivisionError: no number"),
        ("__init__", RemoteProtocolError, ServerUnreachableError, "is lost: .*'__init__'"),
    ],
)
def test_a_device_that_fails_is_lost_with_all_that_it_was_asked(name, raised, error, why):
    with group_of([Adds(), Adds()], raises={2: raised}) as group:
        futures = group.call(2, name) + group.call(2, "add", X, more=5)
        for future in futures:
            with pytest.raises(error, match=f"Device 2 {why}"):
                group.result(future)
        # What is asked later, too; the other one lives.
        with pytest.raises(error):
            group.each("add", [X, X], more=1)
        assert group.result(group.call(1, "add", X, more=1)[0])


@pytest.mark.parametrize(("trains", "limit"), [(False, "start_timeout"), (True, "round_timeout")])
def test_the_device_that_owes_an_answer_for_too_long_is_lost(trains, limit):
    times = {"start_timeout": 60.0, "round_timeout": 60.0, limit: 0.1}
    slow = Adds()
    with group_of([Adds(), slow], LimitsSpec(**times)) as group:
        if trains:
            group.begin_training()
        try:
            with pytest.raises(ServerUnreachableError, match=rf"Device 2 .*0\.1 s \({limit}\)"):
                group.result(group.call(2, "wait")[0])
        finally:
            slow.over.set()


@pytest.mark.tensorflow
def test_an_error_within_a_lost_group_is_that_of_the_device():
    """TensorFlow hides the error of a function that it calls."""
    with group_of([Adds()]) as group:
        with pytest.raises(OSError, match="of a disk"), group.watched():
            raise OSError("of a disk")
        group._devices[1].drop("a test")
        lost = pytest.raises(ServerUnreachableError, match="Device 1 is lost: a test")
        with lost, group.watched():
            raise OSError("whatever")


def test_devices_learn_why_their_master_has_failed():
    """Spark tells the error of the task that fails first, which may be theirs."""
    with pytest.raises(OSError, match="a disk"), group_of([Adds(), Adds()]) as group:
        raise OSError("a disk")
    assert group.left == dict.fromkeys((1, 2), "The master has failed: OSError: a disk")


def test_a_master_waits_for_all_of_its_devices_and_names_those_that_are_missing():
    group = DeviceGroup(3, LimitsSpec(start_timeout=0.05))
    with pytest.raises(StartTimeoutError, match=r"Missing: \[1, 2\]"):
        group.wait_for_all()


def test_an_error_of_building_a_module_reaches_the_master():
    def build():
        raise ValueError("no such layer")

    ours, theirs = (ArrayChannel(stream) for stream in stream_pair())
    with DeviceGroup(2, PATIENT) as group:
        group.admit(1, ours)
        with pytest.raises(ValueError, match="no such layer"):
            serve(theirs, build)
        with pytest.raises(WorkerFailedError, match="Device 1 has failed: ValueError: no such"):
            group.each("add")


def test_no_number_is_taken_twice():
    with group_of([Adds()]) as group:
        one, other = socket.socketpair()
        with other:
            group.admit(1, ArrayChannel(SocketStream(one)))
            assert other.recv(1) == b""
        assert group.result(group.call(1, "add", X, more=1)[0])


def test_a_group_that_was_released_is_not_lost():
    with group_of([Adds()]) as group:
        group.result(group.call(1, "add", X, more=1)[0])
        moved = group.moved
        group.release()
        assert group.lost is None
        assert group.moved >= moved > 0

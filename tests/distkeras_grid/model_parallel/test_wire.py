"""Calls with arrays over a stream, and who is let in."""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import time

import numpy as np
import pytest

from distkeras_grid.errors import (
    AuthenticationError,
    RemoteProtocolError,
    ServerUnreachableError,
)
from distkeras_grid.model_parallel.job import (
    DriverCaller,
    DriverEndpoint,
    GroupPlan,
    join,
    listening,
)
from distkeras_grid.model_parallel.wire import (
    MAGIC,
    STRANGERS,
    ArrayChannel,
    HandshakeListener,
    connect,
)
from distkeras_grid.parameter_server.auth import new_key
from distkeras_grid.parameter_server.encryption import FrameCipher
from distkeras_grid.parameter_server.messages import Endpoint
from distkeras_grid.parameter_server.settings import BindAddress, ServerAddress
from tests.stream_pair import stream_pair

KEY = new_key()
PLACE = BindAddress("127.0.0.1", "127.0.0.1")


def channels():
    return [ArrayChannel(stream) for stream in stream_pair()]


def test_arrays_of_any_shape_arrive_aligned_and_unchanged():
    ours, theirs = channels()
    random = np.random.default_rng(2)
    arrays = [random.random(shape, np.float32) for shape in ((2, 3), (0, 4), (5, 6), ())]
    # Larger than the stream's buffer, so that it is sent in pieces; and not contiguous.
    arrays.append(random.random((300, 200), np.float32)[:, ::2])
    arrays.append(np.arange(7, dtype=np.uint8))
    sender = threading.Thread(target=ours.send, args=("forward", {"number": 7}, arrays))
    sender.start()
    call = theirs.receive(10.0)
    sender.join(10)
    assert (call.name, call.values) == ("forward", {"number": 7})
    for one, other in zip(arrays, call.arrays, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
        assert other.size == 0 or other.ctypes.data % 64 == 0
    assert ours.moved == theirs.moved


def test_the_end_between_two_calls_is_no_error_and_within_one_it_is():
    ours, theirs = channels()
    ours.send("step", {})
    ours.close()
    assert theirs.receive(10.0).name == "step"
    assert theirs.receive(10.0) is None
    stream, other = stream_pair()
    stream.send([memoryview(MAGIC)], time.monotonic() + 1.0)
    stream.finish_sending()
    with pytest.raises(ConnectionResetError):
        ArrayChannel(other).receive(1.0)


def raw(body=b"\x93\xa1f\x80\x90", payload=0, magic=MAGIC, length=None):
    return struct.pack("<4sIQ", magic, len(body) if length is None else length, payload) + body


@pytest.mark.parametrize(
    "data",
    [
        raw(magic=b"DKGP"),
        raw(length=1 << 30),
        raw(payload=1 << 40),
        # Without an array of this size.
        raw(payload=8),
        raw(b"\x80"),
        # An object would be unpickled.
        raw(b"\x93\xa1f\x80\x91\x92\xa6object\x91\x01"),
    ],
)
def test_frames_that_are_none_are_refused(data):
    stream, other = stream_pair()
    stream.send([memoryview(data)], time.monotonic() + 1.0)
    with pytest.raises(RemoteProtocolError):
        ArrayChannel(other).receive(1.0)


@pytest.fixture
def gate():
    admitted = queue.SimpleQueue()
    with HandshakeListener(PLACE, "run", KEY, lambda *client: admitted.put(client)) as gate:
        gate.admitted = admitted
        yield gate


def test_who_has_the_key_is_let_in_by_either_door(gate):
    tcp = ServerAddress(gate.address.host, gate.address.port)
    for number, address in ((1, gate.address), (2, tcp)):
        with connect(address, "run", KEY, number, 10.0) as ours:
            found, theirs = gate.admitted.get(timeout=10)
            with theirs:
                assert found == number
                ours.send("echo", {}, [np.ones(3, np.float32)])
                assert theirs.receive(10.0).arrays[0].sum() == 3


@pytest.mark.parametrize(
    ("run", "key"), [("run", b"k" * 32), ("another run", KEY)], ids=["key", "run"]
)
def test_who_has_not_is_refused(gate, run, key):
    with pytest.raises(AuthenticationError):
        connect(gate.address, run, key, 1, 10.0)
    assert gate.admitted.empty()


def test_who_was_refused_keeps_nobody_out(gate):
    for _ in range(STRANGERS + 1):
        with pytest.raises(AuthenticationError):
            connect(gate.address, "another run", KEY, 1, 10.0)
    with connect(gate.address, "run", KEY, 1, 10.0):
        gate.admitted.get(timeout=10)[1].close()


def test_what_a_gate_on_tcp_exchanges_cannot_be_read(gate):
    secret = np.arange(100, dtype=np.float32)
    tcp = ServerAddress(gate.address.host, gate.address.port)
    with connect(tcp, "run", KEY, 1, 10.0) as ours:
        _, theirs = gate.admitted.get(timeout=10)
        with theirs:
            for sender, receiver in ((ours, theirs), (theirs, ours)):
                sender.send("echo", {}, [secret])
                came = bytearray(2000)
                size = 0
                while size < secret.nbytes:
                    size += receiver._stream.receive_into(memoryview(came)[size:], 10.0)
                assert secret.tobytes()[:40] not in came


def test_what_others_can_reach_is_sealed_and_a_changed_byte_is_refused():
    streams = stream_pair()
    keys = {side: bytes([number] * 32) for number, side in enumerate(Endpoint)}
    changing = Changing(streams[0])
    ours = ArrayChannel(changing, FrameCipher(Endpoint.CLIENT, keys))
    theirs = ArrayChannel(streams[1], FrameCipher(Endpoint.SERVER, keys))
    array = np.arange(6, dtype=np.float32)
    for _ in range(2):
        ours.send("echo", {}, [array, array])
        np.testing.assert_array_equal(theirs.receive(1.0).arrays, [array, array])
    changing.place = 60
    ours.send("echo", {}, [array])
    with pytest.raises(RemoteProtocolError, match="seal"):
        theirs.receive(1.0)


class Changing:
    """A stream of which somebody changes a byte."""

    place = None

    def __init__(self, stream):
        self._stream = stream

    def send(self, parts, deadline):
        whole = bytearray(b"".join(parts))
        if self.place is not None:
            whole[self.place] ^= 1
        self._stream.send([memoryview(whole)], deadline)


def plan_of(driver=None):
    return GroupPlan(
        run="run", spec=None, count=3, driver=driver, key=KEY, engine=None, module=None
    )


def test_a_device_of_an_earlier_attempt_is_refused():
    """It lives for some seconds more, and the port of its master may be taken again."""
    admitted = queue.SimpleQueue()
    with listening(plan_of(), 7, PLACE, lambda *client: admitted.put(client)) as earlier:
        pass
    with listening(plan_of(), 8, PLACE, lambda *client: admitted.put(client)) as now:
        address = json.loads(now)["address"]
        with pytest.raises(AuthenticationError):
            join(plan_of(), 1, json.dumps({**json.loads(earlier), "address": address}))
        with join(plan_of(), 2, now):
            number, theirs = admitted.get(timeout=10)
            theirs.close()
    assert (number, admitted.empty()) == (2, True)
    with pytest.raises(ServerUnreachableError, match=r"Device 3 .*no connection to its master"):
        join(plan_of(), 3, now)


def test_a_device_that_is_not_let_in_says_why():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        host, port = busy.getsockname()
        invitation = {"run": "run, attempt 1", "address": ServerAddress(host, port).to_json()}

        def turn_away() -> None:
            client, _ = busy.accept()
            # Nothing is left to read, so this is an end and no reset.
            client.recv(1 << 16)
            client.close()

        closing = threading.Thread(target=turn_away)
        closing.start()
        with pytest.raises(ServerUnreachableError, match=r"Device 1 .*Connection\w+Error\("):
            join(plan_of(), 1, json.dumps(invitation))
        closing.join()


def test_each_device_gets_its_own_part_and_only_the_master_reports():
    reports = []

    def driver(number):
        return DriverCaller(plan_of(door.address), number)

    parts = (b"the last stage", b"the first", b"the second")
    with DriverEndpoint(PLACE, "run", KEY, lambda **report: reports.append(report), parts) as door:
        assert [driver(number).part() for number in range(3)] == list(parts)
        driver(0).report(["a line"], {"c": (3, 4)})
        driver(1).report(["not from the master"])
        with pytest.raises(RemoteProtocolError):
            driver(3).part()
        gone = driver(0)
    # The training does not depend on it.
    gone.report(["another line"])
    (report,) = reports
    assert report == {"lines": ["a line"], "shares": {"c": [3, 4]}}

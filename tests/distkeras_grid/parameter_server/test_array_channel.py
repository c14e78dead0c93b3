"""Messages with arrays, and who is let in."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from functools import partial

import numpy as np
import pytest

from distkeras_grid.errors import (
    AuthenticationError,
    FencedError,
    LocalProtocolError,
    ParameterServerError,
    RemoteProtocolError,
)
from distkeras_grid.model_parallel.master_registry import MASTER, MasterRegistry, RegistryAddress
from distkeras_grid.model_parallel.messages import (
    VOCABULARY,
    Announce,
    Echo,
    FinishDevice,
    Forward,
    Report,
    Welcome,
)
from distkeras_grid.parameter_server import array_channel
from distkeras_grid.parameter_server.array_channel import ArrayChannel
from distkeras_grid.parameter_server.auth import new_key, new_nonce, seat_key
from distkeras_grid.parameter_server.listener import HandshakeListener
from distkeras_grid.parameter_server.messages import Endpoint, Proof, WorkerHello
from distkeras_grid.parameter_server.settings import BindAddress, ServerAddress
from distkeras_grid.parameter_server.streams import SocketStream
from distkeras_grid.parameter_server.transports import Listener, TcpTransport
from tests.distkeras_grid.model_parallel.helpers import proven_pair
from tests.memory_streams import memory_pair

KEY_OF = partial(seat_key, new_key())
MESSAGES = VOCABULARY.messages


def test_arrays_of_any_shape_arrive_aligned_and_unchanged():
    ours, theirs = proven_pair()
    random = np.random.default_rng(2)
    arrays = [random.random(shape, np.float32) for shape in ((2, 3), (0, 4), (5, 6), ())]
    # Larger than the line's buffer, so that it is sent in pieces; and not contiguous.
    arrays.append(random.random((300, 200), np.float32)[:, ::2])
    sender = threading.Thread(target=ours.send, args=(Forward(layer="c", call=7), arrays))
    sender.start()
    message, found = theirs.receive(10.0)
    sender.join(10)
    assert (message.layer, message.call) == ("c", 7)
    for one, other in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(one, other)
        assert other.size == 0 or other.ctypes.data % 64 == 0
    assert ours.sent == theirs.received


def test_the_end_between_two_messages_is_no_error_and_within_one_it_is():
    ours, theirs = proven_pair()
    ours.send(FinishDevice())
    ours.close()
    assert isinstance(theirs.receive(10.0)[0], FinishDevice)
    assert theirs.receive(10.0) is None
    stream, other = memory_pair()
    stream.send([memoryview(b"DKGM\x01")], 1.0)
    stream.finish_sending()
    with pytest.raises(ConnectionResetError):
        array_channel.ArrayChannel(other, VOCABULARY).receive(1.0)


def test_an_interrupt_ends_the_wait_of_another_thread_although_the_peer_is_silent():
    """The peer may hang. Its end was told, and the thread waited for what it never does."""
    one, other = socket.socketpair()
    with other:
        channel = ArrayChannel(SocketStream(one), VOCABULARY)
        channel.proven = True

        def wait():
            # Whatever it raises, it ends.
            with contextlib.suppress(OSError, ParameterServerError):
                channel.receive(None)

        thread = threading.Thread(target=wait)
        thread.start()
        # It waits within the system call, most likely.
        time.sleep(0.1)
        channel.interrupt()
        thread.join(5)
        silent = thread.is_alive()
    thread.join(5)
    channel.close()
    assert not silent


def raw(number, body=b"", payload=0, magic=VOCABULARY.magic, version=VOCABULARY.version):
    return struct.pack("<4sBBIQ", magic, version, number, len(body), payload) + body


@pytest.mark.parametrize(
    "data",
    [
        raw(0, magic=b"DKGP"),
        raw(0, version=9),
        raw(len(MESSAGES)),
        raw(MESSAGES.index(Echo), payload=1 << 40),
        raw(MESSAGES.index(Echo), payload=8),
        raw(MESSAGES.index(Forward), b"\x80"),
    ],
)
def test_frames_that_are_none_are_refused(data):
    stream, other = memory_pair()
    channel = array_channel.ArrayChannel(other, VOCABULARY)
    channel.proven = True
    stream.send([memoryview(data)], 1.0)
    with pytest.raises(RemoteProtocolError):
        channel.receive(1.0)


def test_nothing_but_the_handshake_may_come_before_the_proof():
    ours, theirs = (array_channel.ArrayChannel(stream, VOCABULARY) for stream in memory_pair())
    ours.send(FinishDevice())
    with pytest.raises(RemoteProtocolError):
        theirs.receive(1.0)
    with pytest.raises(LocalProtocolError):
        ours.send(Proof("0" * 64), [np.zeros(3, np.float32)])


def test_a_silent_line_ends_the_wait():
    _, theirs = proven_pair()
    with pytest.raises(TimeoutError):
        theirs.receive(0.01)


@pytest.fixture
def gate():
    admitted = []
    listener = Listener("127.0.0.1", 0, "127.0.0.1")

    def admit(hello, channel):
        admitted.append((hello.seat, hello.attempt))
        channel.close()

    def permit(hello):
        if hello.attempt == 4:
            raise FencedError

    with HandshakeListener(listener, KEY_OF, "run", VOCABULARY, Welcome(), admit, permit) as gate:
        gate.admitted = admitted
        yield gate


def test_who_has_the_key_is_let_in_by_either_door(gate):
    guide = RegistryAddress("run", KEY_OF, gate.address)
    tcp = ServerAddress(gate.address.host, gate.address.port)
    for number, address in ((1, gate.address), (2, tcp)):
        channel, welcome = guide.connect(address, number, 5, 10.0)
        assert welcome == Welcome()
        # It is admitted after the welcome, and closed then.
        assert channel.receive(10.0) is None
        channel.close()
    assert sorted(gate.admitted) == [(1, 5), (2, 5)]


def test_who_is_turned_away_learns_why_and_is_not_admitted(gate):
    with pytest.raises(FencedError):
        RegistryAddress("run", KEY_OF, gate.address).connect(gate.address, 1, 4, 10.0)
    assert gate.admitted == []


def test_what_others_can_reach_is_sealed_and_a_changed_byte_is_refused():
    streams = memory_pair()
    ours, theirs = (array_channel.ArrayChannel(Reachable(stream), VOCABULARY) for stream in streams)
    keys = {side: bytes([number] * 32) for number, side in enumerate(Endpoint)}
    ours.protect(Endpoint.CLIENT, keys)
    theirs.protect(Endpoint.SERVER, keys)
    array = np.arange(6, dtype=np.float32)
    for _ in range(2):
        ours.send(Echo(), [array, array])
        _, found = theirs.receive(1.0)
        np.testing.assert_array_equal(found, [array, array])
    ours._stream.change = 60
    ours.send(Echo(), [array])
    with pytest.raises(RemoteProtocolError, match="seal"):
        theirs.receive(1.0)


class Reachable:
    """A stream that others can reach; one of them changes a byte."""

    private, change = False, None

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def send(self, parts, seconds):
        whole = bytearray(b"".join(parts))
        if self.change is not None:
            whole[self.change] ^= 1
        assert self._stream.send([memoryview(whole)], seconds) == len(whole)
        return len(whole)


@pytest.mark.parametrize("guide", [("run", partial(seat_key, new_key())), ("another run", KEY_OF)])
def test_who_has_not_is_refused(gate, guide):
    with pytest.raises(AuthenticationError):
        RegistryAddress(*guide, gate.address).connect(gate.address, 1, 0, 10.0)
    assert gate.admitted == []


def channel_by(transport):
    return ArrayChannel(transport.connect(10.0), VOCABULARY)


def test_the_key_of_one_number_is_not_that_of_another_and_no_hello_is_taken_twice(gate):
    tcp = TcpTransport(gate.address.host, gate.address.port)
    hello = WorkerHello("run", 1, 0, 0, new_nonce())
    with (
        pytest.raises(AuthenticationError),
        channel_by(tcp) as channel,
    ):
        array_channel.join(channel, KEY_OF(2), hello, 10.0, Welcome)
    with channel_by(tcp) as channel:
        array_channel.join(channel, KEY_OF(1), hello, 10.0, Welcome)
    with (
        pytest.raises(AuthenticationError),
        channel_by(tcp) as channel,
    ):
        array_channel.join(channel, KEY_OF(1), hello, 10.0, Welcome)


def test_devices_learn_where_the_newest_master_is_and_only_a_master_may_say_so():
    reports = []
    place = BindAddress("127.0.0.1", "127.0.0.1")
    with MasterRegistry(place, KEY_OF, "run", reports.append) as directory:
        guide = RegistryAddress("run", KEY_OF, directory.address)
        with guide.ask(1, 0, 10.0) as device:
            assert device.master() is None
            for attempt, port in ((4, 7001), (3, 7002)):
                with guide.ask(MASTER, attempt, 10.0) as master:
                    master.announce(ServerAddress("there", port))
            assert device.master() == ServerAddress("there", 7001)
        with guide.ask(MASTER, 4, 10.0) as master:
            master.report(Report(lines=("a line",), shares={"c": (3, 4)}))
        with pytest.raises(ParameterServerError), guide.ask(1, 0, 10.0) as device:
            device._ask(Announce(host="here", port=1, unix_path=None), Report)
    assert [report.lines for report in reports] == [("a line",)]

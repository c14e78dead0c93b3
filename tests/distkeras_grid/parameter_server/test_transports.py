"""What every transport must do: one contract, run on TCP and on a Unix socket."""

from __future__ import annotations

import _socket
import contextlib
import errno
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.parameter_server import transports
from distkeras_grid.parameter_server.channel import Channel
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.messages import (
    Endpoint,
    PayloadKind,
    Rejection,
    WindowCommit,
)
from distkeras_grid.parameter_server.settings import BindAddress
from distkeras_grid.parameter_server.transports import (
    Listener,
    SocketAcceptor,
    TokenServer,
    connect_tcp,
    connect_unix,
    listen,
    routes,
)

SIZE = 100_000
VECTOR = np.arange(SIZE, dtype=np.float32)


class Door:
    """A listening socket, and who has come by it."""

    def __init__(self, listening):
        self._arrived = queue.SimpleQueue()
        self._acceptor = SocketAcceptor(listening, self._arrived.put)
        self.close = self._acceptor.close

    def accept(self):
        return self._arrived.get(timeout=5)


def tcp(tmp_path):
    listening = listen("127.0.0.1", 0)
    return partial(connect_tcp, *listening.getsockname()), Door(listening)


def unix(tmp_path):
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = str(tmp_path / "door")
    listening.bind(path)
    listening.listen()
    return partial(connect_unix, path), Door(listening)


def without_unix_sockets(name):
    """Return a method of sockets that fails for Unix sockets, as in some sandboxes."""

    def forbidden(self, address):
        if self.family == socket.AF_UNIX:
            raise OSError(errno.EPERM, "not permitted")
        return getattr(_socket.socket, name)(self, address)

    return forbidden


@pytest.mark.parametrize(
    "case", ["the server cannot bind", "the worker cannot connect", "nobody listens", "a stranger"]
)
def test_where_no_unix_socket_leads_to_the_server_a_worker_takes_tcp(
    serve, tools, monkeypatch, case
):
    if case == "the server cannot bind":
        monkeypatch.setattr(socket.socket, "bind", without_unix_sockets("bind"))
    bench = serve()
    path = {
        "nobody listens": "\0nobody listens here",
        # Another server at a path that only looks the same.
        "a stranger": serve().address.unix_name,
    }.get(case, bench.address.unix_name)
    if case == "the worker cannot connect":
        monkeypatch.setattr(socket.socket, "connect", without_unix_sockets("connect"))
    client = bench.started(address=replace(bench.address, unix_name=path))
    assert tools.exchange(client, tools.commit(0))[1] == 1
    assert client.transport == "tcp"
    np.testing.assert_array_equal(bench.driver().center(), 1)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the thread looks after a time")
@pytest.mark.parametrize("kind", [tcp, unix], ids=lambda kind: kind.__name__)
def test_a_listening_socket_is_closed_at_once(kind, tmp_path, monkeypatch):
    """A Unix socket that is shut down has nobody to accept, and says at once that it is ready."""
    monkeypatch.setattr(transports, "LOOK_SECONDS", 30.0)
    _, door = kind(tmp_path)
    begun = time.monotonic()
    door.close()
    assert time.monotonic() - begun < 10


@pytest.fixture
def arrived():
    return queue.SimpleQueue()


@pytest.fixture
def listener(arrived):
    place, slots = BindAddress("127.0.0.1", "127.0.0.1"), threading.BoundedSemaphore(2)
    listening = Listener(place, slots, arrived.put)
    yield listening
    listening.close()


def unix_of(listener):
    """Return the way to a listener's Unix socket."""
    return routes(listener.address)[0]


def test_more_clients_than_slots_are_turned_away(listener, arrived, capsys):
    streams = [unix_of(listener)(5) for _ in range(3)]
    assert streams[2].receive_into(memoryview(bytearray(1)), 5) == 0
    for stream in (*streams, *(arrived.get(timeout=5) for _ in range(2))):
        stream.close()
    assert "too many connections" in capsys.readouterr().err


def test_without_a_thread_a_client_is_sent_away_and_the_next_one_is_served(
    listener, arrived, monkeypatch
):
    start, failed = threading.Thread.start, []

    def fail_once(self):
        if not failed:
            failed.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    first = unix_of(listener)(5)
    assert first.receive_into(memoryview(bytearray(1)), 5) == 0
    second = unix_of(listener)(5)
    for stream in (first, second, arrived.get(timeout=5)):
        stream.close()


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract names")


@linux
def test_a_unix_socket_has_no_file_that_a_kill_could_leave(listener, arrived):
    assert listener.address.unix_name.startswith("\0")
    transport = unix_of(listener)
    for stream in (transport(5), arrived.get(timeout=5)):
        stream.close()
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        transport(5)


#: A program of another user: it acts at an abstract name, says how that ended, and waits.
STRANGER = """
import os, socket, sys
os.setuid(65534)
unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
unix.settimeout(10)
if sys.argv[1] == "connect":
    unix.connect("\\0" + sys.argv[2])
    print("received", len(unix.recv(1)), flush=True)
else:
    unix.bind("\\0" + sys.argv[2])
    unix.listen()
    print("listens", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def stranger(does, name):
    command = [sys.executable, "-c", STRANGER, does, name.removeprefix("\0")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process.stdout.readline().strip()
        process.communicate(timeout=10)


two_users = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="only root can start another user's process",
)


@two_users
def test_another_user_is_turned_away(listener, arrived):
    with stranger("connect", listener.address.unix_name) as told:
        assert told == "received 0"
        assert arrived.empty()
    ours = unix_of(listener)(5)
    theirs = arrived.get(timeout=5)
    ours.send([memoryview(b"x")], time.monotonic() + 5)
    assert theirs.receive_into(memoryview(bytearray(1)), 5) == 1
    ours.close()
    theirs.close()


@two_users
def test_where_another_user_listens_a_worker_takes_tcp(serve, tools):
    """It has taken the name of a dead server, and would pass on what it receives."""
    bench = serve()
    name = f"\0dkg-test-{os.getpid()}"
    with stranger("listen", name) as told:
        assert told == "listens"
        with pytest.raises(PermissionError):
            connect_unix(name, 5)
        client = bench.started(address=replace(bench.address, unix_name=name))
        assert tools.exchange(client, tools.commit(0))[1] == 1
        assert client.transport == "tcp"


@linux
def test_each_end_looks_whose_process_the_other_one_is(listener, monkeypatch):
    """Also without root: both ends are told that this process is of another user."""
    transport = unix_of(listener)
    number = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: number)
    with pytest.raises(PermissionError):
        transport(5)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(5)
        raw.connect(listener.address.unix_name)
        assert raw.recv(1) == b""


@pytest.mark.parametrize("kind", [tcp, unix], ids=lambda kind: kind.__name__)
class TestTransport:
    """The contract."""

    @pytest.fixture
    def ends(self, kind, tmp_path):
        """A transport and its door, and both ends of a connection through them."""
        transport, door = kind(tmp_path)
        client = transport(5)
        server = door.accept()
        yield transport, door, client, server
        for each in (client, server, door):
            each.close()

    @pytest.fixture
    def channels(self, ends):
        """A worker's and the server's channel, where the worker may commit."""
        _, _, client, server = ends
        pair = [
            Channel(stream, Connection(side, SIZE))
            for stream, side in ((client, Endpoint.CLIENT), (server, Endpoint.SERVER))
        ]
        for channel in pair:
            channel.connection.state = "running"
            channel.connection.vector = np.zeros(SIZE, np.float32)
        return pair

    def frame(self, tools):
        sender = Connection(Endpoint.CLIENT, SIZE)
        sender.state = "running"
        return sender.send(tools.commit(0), VECTOR.nbytes, PayloadKind.VECTOR) + VECTOR.tobytes()

    def test_whole(self, channels, tools):
        worker, server = channels
        sending = threading.Thread(target=worker.send, args=(tools.commit(0), VECTOR))
        sending.start()
        assert isinstance(server.receive(5), WindowCommit)
        sending.join(5)
        np.testing.assert_array_equal(server.connection.vector, VECTOR)
        server.send(Rejection("no"))
        assert worker.receive(5) == Rejection("no")

    def test_byte_by_byte(self, ends, channels, tools):
        _, _, client, _ = ends
        server = channels[1]
        frame = self.frame(tools)

        def trickle():
            for place in range(300):
                send_all(client, frame[place : place + 1])
            send_all(client, frame[300:])

        sending = threading.Thread(target=trickle)
        sending.start()
        assert isinstance(server.receive(5), WindowCommit)
        sending.join(5)
        np.testing.assert_array_equal(server.connection.vector, VECTOR)

    def test_trailing_bytes_stay_for_the_next_message(self, ends, channels, tools):
        _, _, client, _ = ends
        server = channels[1]
        sending = threading.Thread(target=send_all, args=(client, self.frame(tools) + b"x" * 100))
        sending.start()
        assert isinstance(server.receive(5), WindowCommit)
        sending.join(5)
        server.connection.state = "running"
        with pytest.raises(RemoteProtocolError):
            server.receive(5)

    @pytest.mark.parametrize("length", [1, 10, 25, 1000])
    def test_cut_short(self, ends, channels, tools, length):
        _, _, client, _ = ends
        send_all(client, self.frame(tools)[:length])
        client.close()
        with pytest.raises(ConnectionError):
            channels[1].receive(5)

    def test_an_end_between_messages_is_no_error(self, channels):
        channels[0].close()
        assert channels[1].receive(5) is None

    def test_a_thread_that_waits_is_interrupted(self, channels, tools):
        worker, server = channels
        results = []

        def wait():
            results.extend(tools.in_threads(lambda: worker.receive(20)))

        waiting = threading.Thread(target=wait)
        waiting.start()
        worker.stream.interrupt()
        waiting.join(5)
        assert results == [None] or isinstance(results[0], OSError)
        assert server.receive(5) is None
        # Once more, and after the other end has closed.
        server.close()
        worker.stream.interrupt()

    def test_a_deadline_is_for_the_whole_message(self, ends, channels):
        _, _, client, _ = ends
        going = threading.Event()

        def trickle():
            for byte in self.frame_start():
                client.send([memoryview(bytes([byte]))], time.monotonic() + 1)
                if going.wait(0.2):
                    return

        sending = threading.Thread(target=trickle)
        sending.start()
        clock = time.monotonic()
        with pytest.raises(TimeoutError):
            channels[1].receive(0.5)
        assert time.monotonic() - clock < 2
        going.set()
        sending.join(5)

    def frame_start(self):
        return b"DKGP\x02\x09" + bytes(14)

    def test_a_peer_that_takes_nothing_is_given_up(self, ends):
        _, _, client, _ = ends
        data = memoryview(bytes(1 << 20))

        def fill():
            while True:
                client.send([data], time.monotonic() + 0.2)

        with pytest.raises(TimeoutError):
            fill()

    def test_whether_the_peer_has_ended(self, ends):
        _, _, client, server = ends
        assert not server.ended()
        client.finish_sending()
        deadline = time.monotonic() + 5
        while not server.ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.ended()
        send_all(server, b"still heard")
        assert client.receive_into(memoryview(bytearray(20)), 5) == 11

    def test_a_unix_socket_passes_files(self, kind, ends, tmp_path):
        _, _, client, server = ends
        assert client.private == server.private == (kind is unix)
        if kind is not unix:
            return
        sent = (tmp_path / "sent").open("wb+", buffering=0)
        with sent:
            sent.write(b"content")
            client.send([memoryview(b"before")], time.monotonic() + 5)
            client.send_file(sent.fileno(), 5)
        client.send([memoryview(b"after")], time.monotonic() + 5)
        target = bytearray(6)
        assert (server.receive_into(memoryview(target), 5), bytes(target)) == (6, b"before")
        count, file = server.receive_file(5)
        assert count == 1
        with os.fdopen(file, "rb") as received:
            assert os.pread(received.fileno(), 100, 0) == b"content"
            assert not os.get_inheritable(received.fileno())
        # A byte with which none comes.
        assert server.receive_file(5) == (1, None)
        client.close()
        assert server.receive_into(memoryview(bytearray(9)), 5) == 4
        assert server.receive_file(5) == (0, None)

    def test_a_closed_door_lets_nobody_in(self, ends):
        transport, door, _, _ = ends
        door.close()
        with pytest.raises(OSError):  # noqa: PT011 - its kind is the transport's
            transport(1)


def send_all(stream, data):
    stream.send([memoryview(data)], time.monotonic() + 5)


def test_a_connection_that_is_reset_does_not_end_the_answers(monkeypatch):
    """As when a client leaves before it was accepted; all later probes found nobody."""
    accept, failed = socket.socket.accept, []

    def fail_once(self):
        if not failed:
            failed.append(self)
            raise ConnectionAbortedError("the client has left")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", fail_once)
    with TokenServer("127.0.0.1", 0) as server:
        address = ("127.0.0.1", server.port)
        with socket.create_connection(address, timeout=5) as stream:
            assert stream.recv(100).decode("ascii") == server.token
    assert failed
    assert not server._door._thread.is_alive()

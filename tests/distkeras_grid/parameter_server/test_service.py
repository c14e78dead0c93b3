"""Real sockets against a server in this process."""

import gc
import pickle
import socket
import struct
import threading
import time
import tracemalloc
import weakref
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from distkeras_grid.errors import (
    AuthenticationError,
    FencedError,
    GridError,
    RefusedError,
    ServerUnreachableError,
)
from distkeras_grid.parameter_server import auth, frames, service, transports
from distkeras_grid.parameter_server.auth import (
    driver_key,
    new_key,
    new_nonce,
    prove,
    seat_key,
)
from distkeras_grid.parameter_server.channel import Channel
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.driver_client import DriverClient
from distkeras_grid.parameter_server.messages import (
    Challenge,
    Close,
    Done,
    Endpoint,
    Message,
    Proof,
    WorkerHello,
)
from distkeras_grid.records import EpochEnded, WindowRecord
from distkeras_grid.weights import empty_vector

BOTH = pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])


def raw_channel(bench, unix=True):
    address = bench.address if unix else replace(bench.address, unix_name=None)
    connection = Connection(Endpoint.CLIENT, bench.settings.spec.size)
    return Channel(transports.routes(address)[0](5), connection)


def shake_hands(bench, channel, key) -> Message | None:
    hello = WorkerHello("test", 0, 0, bench.settings.spec.size, new_nonce())
    channel.send(hello)
    answer = channel.receive(5)
    if not isinstance(answer, Challenge):
        return answer
    channel.send(Proof(prove(key, Endpoint.CLIENT, hello, answer.nonce)))
    return channel.receive(5)


def assert_alive(bench, tools, folded):
    """The server goes on, and its center is what was folded and no more."""
    driver = bench.driver()
    np.testing.assert_array_equal(driver.center(), folded)
    assert driver.poll(5).version == folded


def failures(bench):
    return [e for e in bench.driver().poll(5).events if getattr(e, "status", "") == "failed"]


@pytest.mark.parametrize("compression", [None, "bfloat16", "dgc"])
def test_window_events_tell_the_bytes_on_the_wire(serve, tools, monkeypatch, compression):
    sent = []
    send = Connection.send

    def count(self, message, payload, content):
        data = send(self, message, payload, content)
        sent.append((type(message).__name__, len(data) + payload))
        return data

    monkeypatch.setattr(Connection, "send", count)
    bench = serve(compression=compression)
    client = bench.started()
    payload, reply = np.zeros(bench.settings.spec.size, np.float32), client.vector.copy()
    payload[3] = 1
    client.exchange(tools.commit(0), payload, reply)
    assert reply.tolist() == payload.tolist()
    (event,) = [e for e in bench.driver().poll(5).events if isinstance(e, WindowRecord)]
    sizes = dict(sent)
    assert event.bytes_up == sizes["WindowCommit"]
    assert event.bytes_down == sizes["CommitReply"]


def test_a_wrong_key_is_seen_by_the_client_first(serve, tools):
    bench = serve()
    with pytest.raises(AuthenticationError, match="parameter server does not hold the key"):
        bench.worker(key=new_key())
    assert_alive(bench, tools, 0)


@BOTH
def test_a_client_without_the_key_is_turned_away(serve, tools, unix):
    bench = serve()
    with raw_channel(bench, unix) as channel:
        answer = shake_hands(bench, channel, key=new_key())
    assert isinstance(answer, Close)
    assert answer.error == "AuthenticationError"
    assert bench.driver().poll(5).events == ()


def test_a_key_opens_its_own_door_only(serve, tools):
    bench = serve(seats=2)
    own = seat_key(bench.key, 0)
    assert bench.worker(0, key=own).seat == 0
    for key in (own, bench.key, driver_key(bench.key)):
        with pytest.raises(AuthenticationError):
            bench.worker(1, key=key)
    for key in (own, bench.key):
        with pytest.raises(AuthenticationError):
            DriverClient.connect(bench.address, key, "test", bench.settings.spec.size, 5)
    assert_alive(bench, tools, 0)


def test_a_replayed_hello_is_refused(serve):
    """The server's own nonce is in the proof."""
    bench = serve()
    hello = WorkerHello("test", 0, 0, bench.settings.spec.size, new_nonce())
    with raw_channel(bench) as channel:
        channel.send(hello)
        own = seat_key(bench.key, 0)
        proof = Proof(prove(own, Endpoint.CLIENT, hello, channel.receive(5).nonce))
        channel.send(proof)
        assert isinstance(channel.receive(5), Done)
    with raw_channel(bench) as channel:
        channel.send(hello)
        assert isinstance(channel.receive(5), Challenge)
        channel.send(proof)
        answer = channel.receive(5)
    assert (type(answer), answer.error) == (Close, "AuthenticationError")


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"run": "other"}, AuthenticationError, r"'test'.*'other'"),
        ({"size": 9}, RefusedError, r"\b8 .*\b9\b"),
        ({"seat": 1}, RefusedError, "workers 0 to 0"),
    ],
)
def test_a_stranger_with_the_key_is_told_why(serve, changes, error, match):
    with pytest.raises(error, match=match):
        serve().worker(**changes)


@BOTH
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack("<4sBBHIQ", b"DKGP", frames.VERSION, 0, 0, 2**31, 0),
        struct.pack("<4sBBHIQ", b"DKGP", frames.VERSION, 9, 1, 10, 2**62),
        b"\0" * 100_000,
    ],
    ids=["http", "long header", "long payload", "zeros"],
)
def test_rubbish_gets_a_goodbye_and_no_memory(serve, tools, data, unix):
    bench = serve()
    with raw_channel(bench, unix) as channel:
        tracemalloc.start()
        try:
            channel.stream._socket.sendall(data)
            received = b""
            while part := channel.stream._socket.recv(4096):
                received += part
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
    assert b"ProtocolError" in received
    assert len(received) <= 1024
    assert_alive(bench, tools, 0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_is_refused_and_the_worker_may_say_so(serve, tools, value):
    bench = serve()
    client = bench.started()
    with pytest.raises(RefusedError, match=r"Worker 0, epoch 1, window 0: .* NaN"):
        tools.exchange(client, tools.commit(0), value)
    with pytest.raises(RefusedError, match="the loss is nan"):
        tools.exchange(client, tools.commit(0, loss=float("nan")))
    assert client.fail("NonFiniteLossError", "the loss is nan")
    assert_alive(bench, tools, 0)
    (failure,) = failures(bench)
    assert failure.error == "NonFiniteLossError"


def test_a_worker_that_dies_at_the_start_is_noticed(serve, tools, monkeypatch):
    monkeypatch.setattr(service, "LOOK_SECONDS", 0.01)
    bench = serve(seats=2)
    client = bench.worker()
    driver = bench.driver()
    gone = Future()
    gone.set_exception(GridError("its process is gone"))
    thread = threading.Thread(target=lambda: tools.in_threads(lambda: client.ready(50)))
    thread.start()
    tools.wait_until(lambda: driver.poll(5).seats[0].status == "ready")
    client._join = lambda _: gone.result()
    client._session.channel.stream._socket.shutdown(socket.SHUT_RDWR)
    tools.wait_until(lambda: driver.poll(5).seats[0].status == "lost")
    thread.join(5)


def test_a_failure_that_nobody_hears_raises_nothing(serve, tools):
    bench = serve()
    old = bench.started()
    bench.worker(attempt=1)
    with pytest.raises(FencedError):
        tools.exchange(old, tools.commit(0))
    assert not old.fail("ValueError", "too late")


def test_a_long_failure_is_cut(serve):
    bench = serve()
    assert bench.worker().fail("ValueError", "ü" * 100_000)
    assert len(failures(bench)[0].message) == 4000


def lose_reply(client):
    """Break the connection once the reply has come, which nobody reads."""
    stream = client._session.channel.stream._socket
    assert stream.recv(1 << 16)
    stream.shutdown(socket.SHUT_RDWR)


def test_a_sparse_commit_is_sent_again_as_the_same_bytes_and_counts_once(serve, tools, monkeypatch):
    """Nothing that came from the lost reply is taken for known on the new connection."""
    bench = serve(compression="dgc", seats=2)
    other, client = bench.worker(0), bench.worker(1)
    tools.in_threads(lambda: other.ready(50), lambda: client.ready(50))
    sent, pack = [], Connection.pack

    def watch(self, kind, vector):
        *section, data = pack(self, kind, vector)
        if kind.__name__ == "WindowCommit":
            sent.append(bytes(data))
        return *section, data

    monkeypatch.setattr(Connection, "pack", watch)
    send = client._session.channel.send

    def send_and_break(message, *sections):
        send(message, *sections)
        lose_reply(client)
        other.exchange(tools.commit(1), payload, payload.copy())

    payload, reply = np.zeros(bench.settings.spec.size, np.float32), client.vector.copy()
    payload[5] = 0.1
    other.exchange(tools.commit(0), payload, reply.copy())
    client._session.channel.send = send_and_break
    client.exchange(tools.commit(0), payload, reply)
    np.testing.assert_allclose(reply, 3 * payload)
    client.exchange(tools.commit(1), payload, reply)
    np.testing.assert_allclose(reply, 4 * payload)
    np.testing.assert_array_equal(bench.driver().center(), reply)
    assert len(sent) == 5
    assert set(sent) == {sent[0]}


def test_signs_of_life_come_between_requests_and_heal_a_broken_connection(serve, tools):
    bench = serve()
    client = bench.worker()
    assert client.beat("reading", 5, "node", "/log")
    (seat,) = bench.driver().poll(5).seats
    assert (seat.status, seat.activity, seat.done, seat.heartbeats) == ("joined", "reading", 5, 1)
    client.ready(100)
    assert client.beat("training", 1, "node", "/log")
    client._session.channel.close()
    assert client.beat("training", 2, "node", "/log")
    (seat,) = bench.driver().poll(5).seats
    assert (seat.status, seat.activity, seat.done, seat.heartbeats) == ("running", "training", 2, 3)
    assert tools.exchange(client, tools.commit(0))[0].version == 1


def test_a_request_that_waits_is_not_disturbed_by_signs_of_life(serve, tools):
    bench = serve(seats=2, rows=2)
    first, second = bench.worker(0), bench.worker(1)
    thread = threading.Thread(target=lambda: first.ready(1))
    thread.start()
    driver = bench.driver()
    tools.wait_until(lambda: driver.poll(5).seats[0].status == "ready")
    assert not first.beat("training", 0, "", "")
    assert second.ready(1).next_sequence == 0
    thread.join(5)
    assert first.beat("training", 0, "", "")


# The driver


def test_a_worker_at_the_end_of_an_epoch_and_its_driver_wait_for_each_other_only(serve, tools):
    """Neither looks again and again: 50 epochs take less than one of the driver's long waits."""
    epochs, wait_seconds = 50, 10.0
    bench = serve(rows=1, epochs=epochs, epoch_barrier=True)
    client, driver = bench.started(rows=1), bench.driver()
    answers = []

    def work():
        for number in range(epochs):
            told = tools.commit(number, epoch=1 + number, window=0, version=number)
            answers.append(tools.exchange(client, told)[0])

    worker = threading.Thread(target=work)
    begun = time.monotonic()
    worker.start()
    for epoch in range(1, epochs):
        events = ()
        while worker.is_alive() and not any(isinstance(event, EpochEnded) for event in events):
            events = driver.poll(30, wait_seconds=wait_seconds).events
        driver.command(learning_rate=1 / epoch, epochs=epoch)
    worker.join(10)
    assert [answer.learning_rate for answer in answers[:-1]] == [1 / n for n in range(1, epochs)]
    assert time.monotonic() - begun < wait_seconds


def test_errors_survive_pickling(serve, tools):
    bench = serve()
    client = bench.started()
    with pytest.raises(RefusedError) as caught:
        tools.exchange(client, tools.commit(9))
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (type(copy), str(copy)) == (RefusedError, str(caught.value))


def test_no_server_is_an_error_that_names_both_ends(serve):
    bench = serve()
    with socket.socket() as unused:
        # It does not listen, and no other test can take its port.
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        nowhere = replace(bench.address, port=port, unix_name="\0nonexistent")
        ends = f"{socket.gethostname()}.*127.0.0.1:{port}"
        with pytest.raises(ServerUnreachableError, match=ends):
            bench.worker(address=nowhere, deadline=0.2)


def test_a_silent_stranger_is_cut_off(serve, monkeypatch):
    monkeypatch.setattr(auth, "HANDSHAKE_SECONDS", 0.05)
    with raw_channel(serve()) as channel:
        channel.stream._socket.sendall(b"DKGP")
        channel.stream._socket.settimeout(5)
        assert channel.stream._socket.recv(100) == b""


def test_a_client_that_says_hello_and_never_proves_its_key_is_cut_off(serve, monkeypatch):
    monkeypatch.setattr(auth, "HANDSHAKE_SECONDS", 0.2)
    with raw_channel(serve()) as channel:
        channel.send(WorkerHello("run", 0, 0, 10, new_nonce()))
        assert isinstance(channel.receive(5.0), Challenge)
        assert channel.receive(5.0) is None


def test_the_vector_of_a_lost_connection_goes_with_it(serve, tools, monkeypatch):
    """Not with the next collection of garbage, which few objects with large vectors never start."""
    vectors = []

    def allocated(size):
        vector = empty_vector(size)
        vectors.append(weakref.ref(vector))
        return vector

    monkeypatch.setattr(service, "empty_vector", allocated)
    bench = serve()
    gc.disable()
    try:
        for attempt in range(3):
            bench.started(attempt=attempt).close()
        assert len(vectors) == 3
        tools.wait_until(lambda: not any(vector() is not None for vector in vectors))
    finally:
        gc.enable()

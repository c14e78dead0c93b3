"""Broken connections are healed: real sockets, a relay that breaks them where it is told."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from distkeras_grid.errors import (
    AuthenticationError,
    RemoteProtocolError,
    ServerUnreachableError,
)
from distkeras_grid.parameter_server import client as client_module
from distkeras_grid.parameter_server import service
from distkeras_grid.parameter_server.messages import (
    CenterReply,
    CenterUpdate,
    Challenge,
    Command,
    CommitReply,
    Done,
    FetchCenter,
    Poll,
    Proof,
    PutWorkerState,
    Ready,
    Resume,
    Start,
    WindowCommit,
    WorkerEnd,
    WorkerError,
    WorkerHello,
)
from distkeras_grid.records import EpochEnded, WindowRecord
from tests.distkeras_grid.parameter_server.relay import DRIVER, Fault, Relay

ACTS = pytest.mark.parametrize("act", ["reset", "close"])
#: Of a frame: nothing, a part of its header, half, all but a byte.
WHERE = pytest.mark.parametrize("after", [0, 7, 0.5])


@pytest.fixture
def relayed(serve, request):
    """A function that puts a relay with faults before a bench's server."""

    def relay(bench, *faults):
        found = Relay(bench.address, *faults)
        request.addfinalizer(found.__exit__)
        return found

    return relay


@ACTS
@WHERE
@pytest.mark.parametrize("kind", [WindowCommit, CommitReply])
@pytest.mark.promise(
    "connection: cut in a commit or its reply",
    "The worker connects again; the commit counts once.",
)
def test_an_exchange_is_healed_and_counts_once(serve, tools, relayed, kind, act, after):
    bench = serve()
    relay = relayed(bench, Fault(kind, act, 2, after=after))
    client = bench.started(address=relay.address)
    for sequence in range(4):
        answer, value = tools.exchange(client, tools.commit(sequence, version=sequence))
        assert (answer.version, value) == (sequence + 1, sequence + 1)
    assert len(relay.struck) == 1
    np.testing.assert_array_equal(bench.driver().center(), 4)


@ACTS
@WHERE
@pytest.mark.promise(
    "connection: cut while a worker sends what it keeps",
    "The worker connects again and sends it again.",
)
def test_what_a_worker_keeps_arrives_over_another_connection(serve, tools, relayed, act, after):
    bench = serve(worker_state_limit=64)
    relay = relayed(bench, Fault(PutWorkerState, act, after=after))
    client = bench.started(address=relay.address)
    answer, _ = tools.exchange(client, tools.commit(0))
    assert answer.keep
    client.put_worker_state(1, 1, np.full(64, 5, np.uint8))
    assert len(relay.struck) == 1
    client.close()
    second = bench.started(attempt=1)
    kept, state = second.get_worker_state()
    assert (kept.sequence, state.tolist()) == (1, [5] * 64)


def test_no_vector_and_no_field_can_be_read_on_its_way(serve, tools, relayed):
    bench = serve()
    relay = relayed(bench)
    client = bench.started(address=relay.address)
    _, value = tools.exchange(client, tools.commit(0))
    numbers = value.tobytes()
    sent, answered = relay.passed[WindowCommit], relay.passed[CommitReply]
    assert numbers * 2 not in sent
    assert numbers * 2 not in answered
    assert b"samples" not in sent
    # The proof needs no secret from the network: before it, names can be read.
    assert b"nonce" in relay.passed[WorkerHello]


@pytest.mark.parametrize("act", ["alter", "duplicate"])
#: Of a frame: a bit of its header's length, of its fields, of the vector, and of the last seal.
@pytest.mark.parametrize("after", [12, 24, 0.5, 0.999])
@pytest.mark.parametrize("kind", [WindowCommit, CommitReply])
@pytest.mark.promise(
    "connection: alters or repeats bytes",
    "The frame is not used; the attempt ends, and the next one goes on.",
)
def test_what_is_altered_or_repeated_on_its_way_is_not_used(
    serve, tools, relayed, kind, after, act
):
    """Before, such a commit was folded: whoever could change packets could change weights."""
    bench = serve()
    relay = relayed(bench, Fault(kind, act, 2, after=after))
    client, sequence, attempt = bench.started(address=relay.address), 0, 0
    while sequence < 4:
        try:
            _, value = tools.exchange(client, tools.commit(sequence, version=sequence))
        except RemoteProtocolError:
            attempt += 1
            client = bench.worker(attempt=attempt)
            sequence = client.ready(100).next_sequence
            continue
        assert value == sequence + 1
        sequence += 1
    assert len(relay.struck) == 1
    assert attempt == 1 or act == "duplicate"
    np.testing.assert_array_equal(bench.driver().center(), 4)


@pytest.mark.parametrize(
    ("kind", "nth"),
    [(WorkerHello, 2), (Challenge, 1), (Challenge, 2), (Resume, 1)],
)
def test_what_is_altered_while_a_worker_connects_ends_the_attempt(serve, tools, relayed, kind, nth):
    """No seal is on the frames before the proof, so it looks like another key or protocol."""
    bench = serve()
    relay = relayed(bench, Fault(kind, "alter", nth, after=0.5))

    def connects_twice():
        client = bench.started(address=relay.address)
        relay.cut()
        tools.exchange(client, tools.commit(0))

    with pytest.raises((AuthenticationError, RemoteProtocolError)):
        connects_twice()
    assert len(relay.struck) == 1
    np.testing.assert_array_equal(bench.driver().center(), 0)


@ACTS
@pytest.mark.parametrize("kind", [WorkerHello, Proof, Done, Ready, Start])
def test_the_way_to_the_start_is_healed(serve, tools, relayed, kind, act):
    bench = serve()
    relay = relayed(bench, Fault(kind, act, after=9))
    client = bench.started(address=relay.address)
    assert len(relay.struck) == 1
    assert tools.exchange(client, tools.commit(0))[1] == 1


@ACTS
@pytest.mark.parametrize(("kind", "nth"), [(WorkerEnd, 1), (Done, 2)])
def test_the_end_is_healed(serve, relayed, kind, nth, act):
    bench = serve()
    relay = relayed(bench, Fault(kind, act, nth, after=9))
    bench.started(address=relay.address).finish()
    assert len(relay.struck) == 1
    assert bench.driver().poll(5).seats[0].status == "finished"


@ACTS
@pytest.mark.parametrize(("kind", "nth"), [(WorkerError, 1), (Done, 2)])
def test_a_failure_is_told_in_spite_of_a_cut(serve, relayed, kind, nth, act):
    bench = serve()
    relay = relayed(bench, Fault(kind, act, nth, after=9))
    assert bench.started(address=relay.address).fail("ValueError", "no")
    assert len(relay.struck) == 1
    told = [event for event in bench.driver().poll(5).events if event.status == "failed"]
    assert (told[0].error, told[0].message) == ("ValueError", "no")


@ACTS
@pytest.mark.parametrize("kind", [Poll, CenterUpdate, Command, Done, FetchCenter, CenterReply])
def test_the_drivers_connection_is_healed(serve, tools, relayed, kind, act):
    bench = serve(rows=1, snapshots_per_epoch=1)
    # The first `Done` lets the driver in.
    relay = relayed(bench, Fault(kind, act, 1 + (kind is Done), seat=DRIVER, after=9))
    tools.exchange(bench.started(rows=1), tools.commit(0))
    driver = bench.driver(relay.address)
    kinds = [type(event) for event in driver.poll(5).events]
    assert kinds.count(WindowRecord) == kinds.count(EpochEnded) == 1
    driver.command(stop=True)
    # A snapshot is given once, but not lost on its way.
    np.testing.assert_array_equal(driver.center(1), 1)
    assert driver.poll(5).events == ()
    assert len(relay.struck) == 1


@pytest.mark.promise(
    "server: away for some seconds",
    "Workers wait and connect again.",
)
@pytest.mark.full
def test_a_listener_that_is_away_for_a_while_is_waited_for(serve, tools, relayed):
    bench = serve()
    relay = relayed(bench)
    client = bench.started(address=relay.address)
    relay.refuse(1.0)
    relay.cut()
    assert tools.exchange(client, tools.commit(0))[1] == 1
    relay.refuse(1.0)
    other = bench.worker(attempt=1, address=relay.address)
    assert other.ready(100).next_sequence == 1


@pytest.mark.promise(
    "connection: always breaks",
    "The attempt ends with an error, at a deadline.",
)
def test_a_connection_that_always_breaks_is_given_up(serve, tools, relayed, monkeypatch):
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 1.0)
    bench = serve()
    relay = relayed(bench, Fault(CommitReply, "close", nth=0, after=9))
    client = bench.started(address=relay.address)
    clock = time.monotonic()
    with pytest.raises(ServerUnreachableError):
        tools.exchange(client, tools.commit(0))
    assert time.monotonic() - clock < 5.0
    # Pauses grow: it is no busy loop.
    assert 2 <= len(relay.struck) <= 12
    np.testing.assert_array_equal(bench.driver().center(), 1)


def test_a_failure_of_a_worker_that_waits_for_the_start_reaches_the_driver(
    serve, tools, monkeypatch
):
    monkeypatch.setattr(service, "KEEPALIVE_SECONDS", 0.01)
    monkeypatch.setattr(service, "LOOK_SECONDS", 0.01)
    bench = serve(seats=2)
    client, driver = bench.worker(), bench.driver()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.ready, 50)
        tools.wait_until(lambda: driver.poll(5).seats[0].status == "ready")
        client.interrupt()
        with pytest.raises(ServerUnreachableError):
            waiting.result(5)
    assert client.fail("StalledError", "too slow")
    (failure,) = [event for event in driver.poll(5).events if event.status == "failed"]
    assert failure.error == "StalledError"

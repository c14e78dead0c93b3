"""A worker's client of several servers: real sockets, and a relay that breaks them."""

import time
from contextlib import suppress
from threading import Thread

import numpy as np
import pytest

from distkeras_grid.errors import (
    AuthenticationError,
    FencedError,
    RefusedError,
    ServerUnreachableError,
)
from distkeras_grid.parameter_server import sharded_client
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.messages import CommitReply, WindowCommit
from distkeras_grid.parameter_server.sharded_client import ShardedClient
from distkeras_grid.records import WindowRecord
from distkeras_grid.rules import CommitInfo, build_rule, rule_of
from distkeras_grid.spec import LayoutSpec
from tests.distkeras_grid.parameter_server.conftest import make_commit
from tests.distkeras_grid.parameter_server.relay import Fault, Relay
from tests.distkeras_grid.parameter_server.several import Several
from tests.specs import make_settings

pytestmark = pytest.mark.slow

SIZE = 10
LAYOUT = LayoutSpec(trainable_size=7, statistics_size=3)
RULES = {
    "downpour": {},
    "adagrad": {"rate": 0.5},
    "accumulated_gradient": {},
    "dynamic_rate": {},
    "distance": {"gamma": 0.5},
    "energy_matching": {},
    "elastic": {"alpha": 0.5},
    "elastic_momentum": {"alpha": 0.25},
}


def settings_of(rule="downpour", seats=1, rows=100, **changes):
    parameters = RULES[rule] if isinstance(rule, str) else {}
    built = build_rule(rule, parameters)
    layout = changes.pop("layout", LAYOUT)
    return make_settings(rule=built, layout=layout, seats=seats, rows=rows, **changes)


def exchange(client, sequence, payload, **changes):
    """Send a vector; return the answer and the reply."""
    sent = np.empty(client.vector.size, np.float32)
    sent[:] = payload
    reply = np.full_like(sent, -77)
    return client.exchange(make_commit(sequence, **changes), sent, reply), reply


def windows(driver):
    return [e for e in driver.poll().events if isinstance(e, WindowRecord)]


@pytest.mark.parametrize("compression", [None, "bfloat16", "dgc"])
@pytest.mark.parametrize("rule", RULES)
def test_one_worker_gets_the_same_bits_from_any_number_of_servers(rule, compression):
    if compression and not build_rule(rule, RULES[rule]).traits.compressible:
        pytest.skip("weights keep their digits")
    found = []
    for servers in (1, 3, 7):
        random = np.random.default_rng(3)
        start = random.normal(size=SIZE).astype(np.float32)
        settings = settings_of(rule, compression=compression)
        with Several(settings, servers, start) as several:
            client = several.started()
            sent = random.normal(size=(6, SIZE))
            replies = [client.vector.copy()]
            replies += [exchange(client, number, each)[1] for number, each in enumerate(sent)]
            client.finish()
            found.append(np.array([*replies, several.center()]))
    assert len({np.array(each).tobytes() for each in found}) == 1
    assert len(np.unique(found[0], axis=0)) > 4


@pytest.mark.parametrize("rule", ["downpour", "dynamic_rate", "energy_matching", "elastic"])
def test_each_slice_is_what_its_own_folds_make_of_it_one_after_the_other(tools, rule):
    """Workers at once: servers may fold in different orders, and each order is told."""
    seats, count = 3, 12
    payloads = {
        (seat, number): np.random.default_rng((seat, number)).normal(size=SIZE).astype(np.float32)
        for seat in range(seats)
        for number in range(count)
    }
    settings = settings_of(rule, seats, rows=seats * count)
    with Several(settings, 3) as several:

        def work(seat):
            client = several.started(seat=seat, rows=count)
            for number in range(count):
                exchange(client, number, payloads[seat, number])
            client.finish()

        assert tools.in_threads(*(lambda s=s: work(s) for s in range(seats))) == [None] * seats
        for shard, own, driver in zip(several.shards, several.own, several.drivers(), strict=True):
            folds = sorted(windows(driver), key=lambda record: record.version)
            assert {(fold.worker, fold.window) for fold in folds} == set(payloads)
            assert len(folds) == len(payloads)
            center = Center(
                rule_of(own.spec.rule),
                np.zeros(shard.size, np.float32),
                own.spec.layout.sections,
                seats,
            )
            for seat in range(seats):
                center.on_join(seat, np.empty(shard.size, np.float32))
            for fold in folds:
                part = payloads[fold.worker, fold.window][shard.span].copy()
                center.fold(part, CommitInfo(fold.worker, 1, 1, fold.staleness))
            np.testing.assert_array_equal(driver.center(), center.vector)


def test_each_server_has_versions_of_its_own(tools):
    with Several(settings_of(seats=2), 2) as several:
        mine, other = several.worker(seat=0), several.worker(seat=1)
        tools.in_threads(lambda: mine.ready(50), lambda: other.ready(50))
        # A commit of the other worker reaches the second server only.
        part = several.shards[1]
        sent = np.ones(part.size, np.float32)
        other._clients[1].exchange(make_commit(0), sent, sent.copy())
        assert exchange(mine, 0, 1)[0].version == 1
        assert [client.poll().version for client in several.drivers()] == [1, 2]
        assert [windows(driver)[-1].staleness for driver in several.drivers()] == [0, 1]
        # Each is told the version that it has given, so that nothing looks stale now.
        exchange(mine, 1, 1, version=1)
        assert [windows(driver)[-1].staleness for driver in several.drivers()] == [0, 0]


@pytest.mark.promise(
    "worker: lost when one of two servers has folded its window, and the other has not",
    "The next attempt trains the window again; it counts once on each server.",
)
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_window_that_only_one_server_has_is_folded_by_the_other(ahead):
    with Several(settings_of(rows=3), 2) as several:
        client = several.started(rows=3)
        exchange(client, 0, 1)
        span = several.shards[ahead].span
        half = np.full(several.shards[ahead].size, 2, np.float32)
        client._clients[ahead].exchange(make_commit(1), half, half.copy())
        client.close()
        again = several.worker(attempt=1)
        start = again.ready(3)
        assert start.next_sequence == 1
        np.testing.assert_array_equal(again.vector[span][0], 3)
        # It is trained again, with another result: 4 in place of 2.
        _, reply = exchange(again, 1, 4)
        due = np.full(SIZE, 5, np.float32)
        due[span] = 3
        due[LAYOUT.trainable_size :] = reply[LAYOUT.trainable_size :]
        np.testing.assert_array_equal(reply, due)
        exchange(again, 2, 1, version=2)
        again.finish()
        for driver in several.drivers():
            assert [fold.window for fold in windows(driver)] == [0, 1, 2]
            assert driver.poll().samples_folded == 3


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("kind", [WindowCommit, CommitReply])
@pytest.mark.parametrize("after", [0, 0.5])
@pytest.mark.promise(
    "connection: cut to one of several servers",
    "The worker connects to it again; the commit counts once on each.",
)
def test_a_broken_connection_to_one_server_is_healed(number, kind, after):
    with Several(settings_of(rows=3), 2) as several:
        fault = Fault(kind, "reset", 2, after=after)
        with Relay(several.addresses[number], fault) as relay:
            addresses = list(several.addresses)
            addresses[number] = relay.address
            client = several.started(rows=3, addresses=addresses)
            for sequence in range(3):
                _, reply = exchange(client, sequence, 1)
            assert relay.struck == [fault]
            np.testing.assert_array_equal(reply[: LAYOUT.trainable_size], 3)
            client.finish()
            for driver in several.drivers():
                assert driver.poll().samples_folded == 3


def test_what_is_not_finite_reaches_no_server():
    with Several(settings_of(), 3) as several:
        client = several.started()
        bad = np.zeros(SIZE, np.float32)
        bad[-1] = np.nan
        with pytest.raises(RefusedError, match="NaN"):
            exchange(client, 0, bad)
        assert [driver.poll().version for driver in several.drivers()] == [0, 0, 0]
        exchange(client, 0, 1)
        assert [driver.poll().version for driver in several.drivers()] == [1, 1, 1]


def test_the_first_server_keeps_what_a_worker_needs_and_its_version_says_nothing():
    with Several(
        settings_of(layout=LayoutSpec(trainable_size=9, worker_state_limit=64)), 2
    ) as several:
        client = several.started()
        answer, _ = exchange(client, 0, 1)
        assert answer.keep
        client.first.put_worker_state(1, answer.version, np.arange(5, dtype=np.uint8))
        client.close()
        again = several.worker(attempt=1)
        assert again.ready(100).has_worker_state
        kept, state = again.get_worker_state()
        assert (kept.sequence, kept.version, state.tolist()) == (1, 0, [0, 1, 2, 3, 4])


def test_a_newer_attempt_takes_the_seat_on_every_server():
    with Several(settings_of(), 2) as several:
        old = several.started()
        new = several.worker(attempt=1)
        assert new.ready(100).next_sequence == 0
        with pytest.raises(FencedError):
            exchange(old, 0, 1)
        assert [driver.poll().version for driver in several.drivers()] == [0, 0]


def test_the_first_server_hears_the_end_last_and_a_failure():
    with Several(settings_of(), 2) as several:
        client = several.started()
        assert client.first.beat("training", 3, "host", "log")
        first, second = several.drivers()
        assert (first.poll().seats[0].done, second.poll().seats[0].done) == (3, 0)
        assert client.first.fail("ValueError", "no")
        assert first.poll().seats[0].status == "failed"
        again = several.started(attempt=1)
        again.finish()
        assert [d.poll().seats[0].status for d in (first, second)] == ["finished", "finished"]


def test_a_client_that_is_led_to_another_server_of_its_run_is_refused():
    with (
        Several(settings_of(layout=LayoutSpec(trainable_size=8)), 2) as several,
        pytest.raises(AuthenticationError),
    ):
        several.worker(addresses=several.addresses[::-1])


@pytest.mark.parametrize("refusing", [0, 1])
def test_rows_that_one_server_refuses_end_the_wait_on_the_other(tools, refusing):
    with Several(settings_of(seats=2, rows=10), 2) as several:
        client, other = several.worker(seat=0), several.worker(seat=1)
        # One server has the rows of both, the other one still waits for the other worker.
        part, drivers = other._clients[refusing], several.drivers()

        def wait():
            with suppress(ServerUnreachableError):
                part.ready(5)

        waiting = Thread(target=wait, daemon=True)
        waiting.start()
        tools.wait_until(lambda: drivers[refusing].poll().seats[1].status == "ready")
        clock = time.monotonic()
        with pytest.raises(RefusedError, match="rows"):
            client.ready(6)
        assert time.monotonic() - clock < 20
        # The first one is told, also if it still waits.
        assert tools.in_threads(lambda: client.first.fail("RefusedError", "rows")) == [True]
        assert drivers[0].poll().seats[0].status == "failed"
        part.interrupt()
        waiting.join(10)
        assert not waiting.is_alive()


def test_a_request_that_is_interrupted_leaves_none_waiting(monkeypatch):
    """As Ctrl-C does, or Spark when it ends a task."""
    with Several(settings_of(seats=2), 2) as several:
        client = several.worker()

        def interrupt(*arguments, **options):
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(sharded_client, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.ready(50)
        for each in client._clients:
            assert each._turn.acquire(timeout=0)
            each._turn.release()


def test_the_center_is_received_into_one_vector():
    with Several(settings_of(), 3, np.arange(SIZE)) as several:
        client = several.started()
        assert isinstance(client, ShardedClient)
        np.testing.assert_array_equal(client.vector, np.arange(SIZE))
        assert all(np.shares_memory(client.vector, each.vector) for each in client._clients)

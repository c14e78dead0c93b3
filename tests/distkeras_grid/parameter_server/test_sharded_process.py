"""Several real server processes, and what the driver sees of them."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from distkeras_grid.array_tree import unpack
from distkeras_grid.errors import RefusedError, ServerUnreachableError
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.sharded_client import ShardedClient
from distkeras_grid.parameter_server.sharded_process import ShardedProcess
from distkeras_grid.records import EpochEnded, WindowRecord
from tests.distkeras_grid.parameter_server.conftest import make_commit
from tests.specs import make_settings

SIZE = 50_003
WORKERS, WINDOWS, EPOCHS = 3, 8, 2


@pytest.fixture(scope="module")
def servers():
    """Three servers of a run that has not begun."""
    settings = make_settings(trainable_size=9, servers=3)
    with ShardedProcess(settings, np.arange(9, dtype=np.float32), new_key()) as running:
        yield running


@pytest.mark.full
def test_the_center_is_put_together_in_its_order(servers):
    np.testing.assert_array_equal(servers.center(), np.arange(9))
    out = np.empty(9, np.float32)
    assert servers.center(out=out) is out
    np.testing.assert_array_equal(out, np.arange(9))


def test_each_server_is_a_process_with_an_address_of_its_own(servers):
    assert len(set(servers.pids)) == len({a.port for a in servers.addresses}) == 3
    assert servers.address == servers.addresses[0]


def captured(running, seconds=10, events=None):
    """Poll until a checkpoint has been taken; return its number."""
    until = time.monotonic() + seconds
    while True:
        update = running.poll(10)
        if events is not None:
            events.extend(update.events)
        if update.captured:
            return update.captured
        assert time.monotonic() < until
        time.sleep(0.01)


def sharded(running, key, settings, seat, attempt=0):
    return ShardedClient.connect(
        *(running.addresses, seat_key(key, seat), settings.run, seat, attempt),
        *(settings.spec, 10),
    )


class Work(threading.Thread):
    """A worker that trains windows of ones from where the servers say, until it is told to end."""

    def __init__(self, running, key, settings, seat):
        super().__init__(daemon=True)
        self.client = sharded(running, key, settings, seat)
        self.ended, self.begun, self.size = threading.Event(), -1, settings.spec.size

    def run(self):
        start = self.client.ready(WINDOWS * EPOCHS)
        self.begun, version = start.next_sequence, start.version
        sent, reply = np.ones(self.size, np.float32), np.empty(self.size, np.float32)
        for number in range(self.begun, WINDOWS * EPOCHS * EPOCHS):
            if self.ended.is_set():
                return
            epoch, window = divmod(number, WINDOWS * EPOCHS)
            commit = make_commit(number, version=version, epoch=1 + epoch, window=window)
            version = self.client.exchange(commit, sent, reply).version
            time.sleep(0.002)
        self.client.finish()


@pytest.mark.full
@pytest.mark.parametrize("snapshots", [0, 1])
def test_a_run_that_goes_on_has_each_window_once_in_each_slice(snapshots):
    """Whatever the servers had folded when their states were taken, one after the other."""
    settings = make_settings(
        trainable_size=SIZE,
        seats=WORKERS,
        rows=WINDOWS * EPOCHS * WORKERS,
        epochs=EPOCHS,
        servers=3,
        snapshots_per_epoch=snapshots,
    )
    saved, events, deadline = (), [], time.monotonic() + 120
    for execution in range(4):
        key, new = new_key(), []
        with ShardedProcess(settings, np.zeros(SIZE, np.float32), key, saved) as running:
            workers = [Work(running, key, settings, seat) for seat in range(WORKERS)]
            for worker in workers:
                worker.start()
            if execution < 3:
                while sum(isinstance(event, WindowRecord) for event in new) < 4 + execution:
                    new.extend(running.poll(10).events)
                    assert time.monotonic() < deadline
                running.begin_checkpoint()
                number = captured(running, events=new)
                saved = list(running.parts(number))
                assert len(saved) == 3
                with pytest.raises(RefusedError):
                    list(running.parts(number + 1))
            while execution == 3 and any(worker.is_alive() for worker in workers):
                assert time.monotonic() < deadline
                new.extend(running.poll(10).events)
            for worker in workers:
                worker.ended.set()
                worker.join(20)
                worker.client.close()
            if execution == 3:
                new.extend(running.poll(10).events)
            center = running.center()
        if execution:
            # From where the first server was, or from a window before that another one lacked.
            done = [event for event in events if isinstance(event, WindowRecord)]
            for worker, seat in zip(workers, range(WORKERS), strict=True):
                count = sum(event.worker == seat for event in done)
                assert max(0, count - 1) <= worker.begun <= count
        events += new
    np.testing.assert_array_equal(center, WINDOWS * EPOCHS * EPOCHS * WORKERS)
    windows = [event for event in events if isinstance(event, WindowRecord)]
    assert len({(w.worker, w.epoch, w.window) for w in windows}) == len(windows)
    assert len(windows) == WINDOWS * EPOCHS * EPOCHS * WORKERS
    assert [e.epoch for e in events if isinstance(e, EpochEnded)] == [1, 2]


def exchange(client, shards, number, rows=4):
    """Send a window of a worker with so many rows to some of the servers only."""
    epoch, window = divmod(number, rows)
    for part, shard in zip(client._clients, client._shards, strict=True):
        if shard.number in shards:
            commit = make_commit(number, version=0, epoch=1 + epoch, window=window)
            vector = np.ones(shard.size, np.float32)
            part.exchange(commit, vector, np.empty_like(vector))


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.full
def test_a_checkpoint_is_taken_where_one_server_lacks_a_window_and_has_not_ended_the_epoch(ahead):
    """Nobody waits for the window; a run that goes on folds it where it is missing."""
    settings = make_settings(trainable_size=9, servers=2, rows=2, epochs=2, snapshots_per_epoch=1)
    saved, key, events = (), new_key(), []
    for execution in range(2):
        with (
            ShardedProcess(settings, np.zeros(9, np.float32), key, saved) as running,
            sharded(running, key, settings, 0) as client,
        ):
            assert client.ready(2).next_sequence == execution
            if not execution:
                exchange(client, {0, 1}, 0, rows=2)
                exchange(client, {ahead}, 1, rows=2)
                running.begin_checkpoint(at_once=True)
                number = captured(running, events=events)
                # It stays until the driver has kept its own state.
                assert running.poll(5).captured == number
                assert running.poll(5, captured=number).captured == 0
                saved = list(running.parts(number))
                # What the first server had folded has been told, also what the other one lacks.
                windows = [e.window for e in events if isinstance(e, WindowRecord)]
                assert windows == [0, 1][: 2 - ahead]
                continue
            for number in range(1, 4):
                exchange(client, {0, 1}, number, rows=2)
            for _ in range(2):
                update = running.poll(5)
                events += update.events
            assert update.samples_folded == 4
            np.testing.assert_array_equal(running.center(snapshot=2), 4)
            np.testing.assert_array_equal(running.center(), 4)
    windows = [(e.epoch, e.window) for e in events if isinstance(e, WindowRecord)]
    assert windows == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [e.epoch for e in events if isinstance(e, EpochEnded)] == [1, 2]


@pytest.mark.full
def test_a_slice_without_its_snapshot_is_given_as_it_is():
    """Its server had made it before the checkpoint from which the run goes on."""
    settings = make_settings(trainable_size=9, servers=2, rows=2, epochs=2, snapshots_per_epoch=1)
    key = new_key()
    with (
        ShardedProcess(settings, np.zeros(9, np.float32), key) as running,
        sharded(running, key, settings, 0) as client,
    ):
        client.ready(2)
        exchange(client, {0, 1}, 0, rows=2)
        exchange(client, {1}, 1, rows=2)
        running.begin_checkpoint(at_once=True)
        saved = list(running.parts(captured(running)))
    with (
        ShardedProcess(settings, np.zeros(9, np.float32), key, saved) as running,
        sharded(running, key, settings, 0) as client,
    ):
        client.ready(2)
        exchange(client, {0, 1}, 1, rows=2)
        assert any(isinstance(event, EpochEnded) for event in running.poll(5).events)
        np.testing.assert_array_equal(running.center(snapshot=1), 2)
        with pytest.raises(RefusedError):
            running.center(snapshot=2)


@pytest.mark.parametrize("at", ["poll", "begin_checkpoint"])
@pytest.mark.full
def test_an_interrupt_between_two_servers_loses_nothing(monkeypatch, at):
    settings = make_settings(trainable_size=9, servers=3, rows=4)
    key, events = new_key(), []
    with (
        ShardedProcess(settings, np.zeros(9, np.float32), key) as running,
        sharded(running, key, settings, 0) as client,
    ):
        client.ready(4)
        exchange(client, {0, 1, 2}, 0)
        running.begin_checkpoint()
        with monkeypatch.context() as patched:

            def interrupted(*_, **__):
                raise KeyboardInterrupt

            patched.setattr(running._servers[2], at, interrupted)
            with pytest.raises(KeyboardInterrupt):
                running.poll(5)
        running.reconnect()
        exchange(client, {0, 1, 2}, 1)
        running.begin_checkpoint()
        number = captured(running, events=events)
        folded = unpack(next(running.parts(number)))["ledger"]["samples_folded"]
        # What is in the checkpoint has been told, and the rest is told after it.
        windows = [event.window for event in events if isinstance(event, WindowRecord)]
        assert windows == list(range(folded))
        exchange(client, {0, 1, 2}, 2)
        found = [event for _ in range(2) for event in running.poll(5, captured=number).events]
        windows += [event.window for event in found if isinstance(event, WindowRecord)]
        assert windows == [0, 1, 2]


@pytest.mark.promise(
    "server: killed, one of several",
    "One `ServerUnreachableError`, which says which.",
)
@pytest.mark.full
def test_a_dead_server_is_named():
    settings = make_settings(trainable_size=9, servers=3)
    with ShardedProcess(settings, np.zeros(9, np.float32), new_key()) as running:
        assert running.poll(5).version == 0
        os.kill(running.pids[1], signal.SIGKILL)
        running._servers[1]._started.process.wait(5)
        with pytest.raises(ServerUnreachableError, match=r"Server 1 of 3 .*exit code -9"):
            running.poll(5)
        with pytest.raises(ServerUnreachableError, match="Server 1 of 3"):
            running.reconnect()
    for pid in running.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.full
def test_if_one_server_cannot_start_none_is_left():
    settings = make_settings(trainable_size=9, servers=2)
    started = []

    def serve(own, *arguments):
        from distkeras_grid.parameter_server.process import ServerProcess

        if own.run != settings.run:
            own = make_settings(trainable_size=own.spec.size, run=own.run, bind_host="192.0.2.1")
        started.append(ServerProcess(own, *arguments))
        return started[-1]

    with (
        pytest.raises(ServerUnreachableError, match="Server 1 of 2"),
        ShardedProcess(settings, np.zeros(9, np.float32), new_key(), serve=serve),
    ):
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)

"""Several real server processes, and what the driver sees of them."""

import os
import signal
import time

import numpy as np
import pytest

from distkeras_grid.errors import ParameterServerError, ServerUnreachableError
from distkeras_grid.parameter_server.auth import new_key, seat_key, workers_key
from distkeras_grid.parameter_server.sharded_client import ShardedClient
from distkeras_grid.parameter_server.sharded_process import ShardedProcess
from distkeras_grid.records import EpochEnded, WindowRecord
from distkeras_grid.spec import LayoutSpec
from tests.distkeras_grid.parameter_server.several import commit_of
from tests.specs import make_settings

SIZE = 50_003
WORKERS, WINDOWS, EPOCHS = 3, 8, 2


@pytest.fixture(scope="module")
def servers():
    """Three servers of a run that has not begun."""
    settings = make_settings(trainable_size=9, servers=3)
    with ShardedProcess(settings, np.arange(9, dtype=np.float32), new_key()) as running:
        yield running


def test_the_center_is_put_together_in_its_order(servers):
    np.testing.assert_array_equal(servers.center(), np.arange(9))
    out = np.empty(9, np.float32)
    assert servers.center(out=out) is out
    np.testing.assert_array_equal(out, np.arange(9))


def test_each_server_is_a_process_with_an_address_of_its_own(servers):
    assert len(set(servers.pids)) == len({a.port for a in servers.addresses}) == 3
    assert servers.address == servers.addresses[0]


def test_there_are_no_checkpoints(servers):
    for ask in (servers.gather, lambda: servers.parts(1)):
        with pytest.raises(ParameterServerError, match="one server"):
            ask()


def test_workers_at_once_lose_nothing_and_count_nothing_twice(tools):
    """Sums of small whole numbers, so that == holds in whatever order they are folded."""
    rows = WINDOWS * EPOCHS
    layout = LayoutSpec(trainable_size=SIZE - 3, statistics_size=3)
    settings = make_settings(
        layout=layout,
        seats=WORKERS,
        rows=WINDOWS * WORKERS,
        epochs=EPOCHS,
        servers=3,
        snapshots_per_epoch=1,
    )
    key, center = new_key(), np.zeros(SIZE, np.float32)
    events, samples = [], []
    with ShardedProcess(settings, center, key) as running:

        def work(seat):
            with ShardedClient.connect(
                *(running.addresses, seat_key(workers_key(key), seat), settings.run, seat, 0),
                *(settings.spec, 10),
            ) as client:
                client.ready(WINDOWS, 10)
                sent, reply = np.empty((2, SIZE), np.float32)
                version = 0
                for number in range(rows):
                    sent[:] = seat + 1
                    commit = commit_of(
                        number, version=version, epoch=1 + number // WINDOWS, window=number
                    )
                    version = client.exchange(commit, sent, reply).version
                client.finish()

        def watch():
            until = time.monotonic() + 60
            while True:
                update = running.poll(10)
                events.extend(update.events)
                samples.append(update.samples_folded)
                if all(seat.status == "finished" for seat in update.seats):
                    return
                assert time.monotonic() < until

        found = tools.in_threads(watch, *(lambda s=s: work(s) for s in range(WORKERS)))
        assert found == [None] * (1 + WORKERS)
        snapshots = [running.center(number + 1) for number in range(EPOCHS)]
        last = running.center()
    total = rows * sum(range(1, WORKERS + 1))
    np.testing.assert_array_equal(last[: layout.trainable_size], total)
    np.testing.assert_array_equal(snapshots[-1], last)
    assert (snapshots[0] < total).all()
    windows = [event for event in events if isinstance(event, WindowRecord)]
    assert len({(w.worker, w.window) for w in windows}) == len(windows) == rows * WORKERS
    assert samples[-1] == rows * WORKERS
    assert samples == sorted(samples)
    # The bytes are those of all servers.
    assert all(w.bytes_up > 4 * SIZE and w.bytes_down > 4 * SIZE for w in windows)
    assert [e.epoch for e in events if isinstance(e, EpochEnded)] == [1, 2]
    # The driver's own center is where the workers began.
    assert not center.any()


@pytest.mark.promise(
    "server: killed, one of several",
    "One `ServerUnreachableError`, which says which.",
)
def test_a_dead_server_is_named():
    settings = make_settings(trainable_size=9, servers=3)
    with ShardedProcess(settings, np.zeros(9, np.float32), new_key()) as running:
        assert running.poll(5).version == 0
        os.kill(running.pids[1], signal.SIGKILL)
        running._servers[1]._process.wait(5)
        with pytest.raises(ServerUnreachableError, match=r"Server 1 of 3 .*exit code -9"):
            running.poll(5)
        with pytest.raises(ServerUnreachableError, match="Server 1 of 3"):
            running.reconnect()
    for pid in running.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


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
        ShardedProcess(settings, np.zeros(9, np.float32), new_key(), serve),
    ):
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)

"""Faults in runs whose center is cut over two servers: on processes alone, and on Spark."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distkeras_grid.parameter_server.sharded_process import ShardedProcess
from distkeras_grid.trainers.run import CallbackDecision
from tests.faults import pairs
from tests.faults.counting import EPOCHS, ROWS, counting_data, counting_trainer, from_epoch, kill
from tests.faults.pairs import Pair
from tests.invariants import small_runs
from tests.invariants.test_fault_product import FAMILIES, error_due

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("forkserver")]

#: Point and fault, and the server whose connections the relay holds or breaks.
RUNS = [
    # Half of the commit has reached it, and the other server has folded its half.
    ("half a commit", "kill", 1, "delta", "DGC"),
    ("half a commit", "kill", 0, "elastic", "BatchNorm"),
    *(
        pytest.param(*run, marks=pytest.mark.full)
        for run in (
            ("half a commit", "reset", 1, "staleness", "Adam"),
            ("half a commit", "zombie twin", 0, "delta", "BatchNorm"),
            ("half a commit", "executor x5", 1, "delta", "Adam"),
            ("folded and no reply", "kill", 1, "server state", "BatchNorm"),
            ("folded and no reply", "zombie twin", 0, "staleness", "DGC"),
            ("half a reply", "kill", 0, "server state", "BatchNorm"),
            ("half of what it keeps", "kill", 0, "delta", "Adam"),
            ("window", "kill", 1, "elastic", "Adam"),
            ("gate", "kill", 1, "delta", "BatchNorm"),
            ("finish", "kill", 1, "delta", "DGC"),
            ("finish", "kill", 0, "staleness", "Adam"),
            # The others begin without it, on both servers.
            ("hello", "slot gone", 1, "delta", "DGC"),
        )
    ),
]


class Counting(ShardedProcess):
    """It also knows how many samples each server has folded."""

    folded: dict[int, int]

    def _receive(self, shard, timeout):
        update = super()._receive(shard, timeout)
        vars(self).setdefault("folded", {})[shard.number] = update.samples_folded
        return update


class PairOfServers(Pair):
    """A run with two servers, and a relay in front of one of them."""

    def __init__(self, folder, family, kind, point, fault, behind):
        name, parameters, workers, changes = FAMILIES[family]
        changed = (name, parameters, workers, {**changes, "servers": 2})
        super().__init__(folder, changed, kind, point, fault)
        self.behind = behind

    def serve(self, center):
        self.servers = Counting(self.settings, center, self.key)
        return self.servers

    def relayed(self, server):
        return server.addresses[self.behind]

    def told(self, seat, number, address):
        addresses = list(self.servers.addresses)
        addresses[self.behind] = address
        told = super().told(seat, number, address)
        return told | {"addresses": [each.to_json() for each in addresses]}


@pytest.mark.parametrize(("point", "fault", "behind", "family", "kind"), RUNS)
@pytest.mark.promise(
    "worker: any fault, with several servers",
    "Each window counts once on each server; the run ends with its result.",
)
def test_each_window_counts_once_on_each_server(tmp_path, point, fault, behind, family, kind):
    pair = PairOfServers(tmp_path, family, kind, point, fault, behind).go()
    due = error_due(family, point, fault)
    assert type(pair.error) is (due or type(None)), pair.error
    assert pair.strikes > 0
    if due is not None:
        whole = small_runs.SEAT_ROWS * small_runs.EPOCHS * (pair.workers - 1)
        assert pair.servers.folded == {0: whole, 1: whole}
        return
    samples = small_runs.SEAT_ROWS * small_runs.EPOCHS * pair.workers
    assert pair.servers.folded == {0: samples, 1: samples}
    found = [(window.worker, window.epoch, window.window) for window in pair.history.records]
    assert len(found) == len(set(found)) == small_runs.WINDOWS * small_runs.EPOCHS * pair.workers
    assert pair.history.samples == samples
    assert np.isfinite(pair.center).all()


def test_a_callback_that_stops_the_run_lets_all_workers_end(tmp_path, monkeypatch):
    centers = []

    class Stopping(pairs.Observer):
        def __call__(self, event, center):
            centers.append(center)
            return super().__call__(event, center)[0], CallbackDecision(stop=True)

    monkeypatch.setattr(pairs, "Observer", Stopping)
    name, parameters, workers, _ = FAMILIES["delta"]
    stopped = (name, parameters, workers, {"snapshots_per_epoch": 1})
    monkeypatch.setitem(FAMILIES, "stopped", stopped)
    pair = PairOfServers(tmp_path, "stopped", "DGC", None, "kill", 1)
    pair.settings = structs.replace(pair.settings, spec=pair.settings.spec.change(epochs=1000))
    pair.go()
    assert pair.error is None, pair.error
    assert len(pair.history.epoch_records) == len(centers) == 1
    assert centers[0].shape == pair.center.shape == (small_runs.SIZE,)
    finished = {told.worker for told in pair.history.workers if told.status == "finished"}
    assert finished == set(range(workers))


@pytest.fixture
def pids(monkeypatch):
    """Numbers of the processes of the servers that were started, in the order of their slices."""
    found = []
    enter = ShardedProcess.__enter__

    def note(self):
        entered = enter(self)
        found.extend(self.pids)
        return entered

    monkeypatch.setattr(ShardedProcess, "__enter__", note)
    return found


@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.promise(
    "server: killed, one of several, with checkpoints",
    "The run begins again from its newest checkpoint; exact.",
)
@pytest.mark.parametrize("dies", [1, 0])
@pytest.mark.full
def test_a_run_begins_again_after_one_of_two_servers_was_killed(spark, tmp_path, pids, dies):
    """Each window is once in each slice, whichever server dies."""
    folder, data, killed = tmp_path / "checkpoints", counting_data(spark, ROWS), []
    # So long that a busy driver gets a checkpoint, with both servers in one epoch, before the last.
    epochs, batches = 2 * EPOCHS, {"batch_size": 1, "communication_window": 2}
    saving = {"checkpoint_dir": str(folder), "checkpoint_every": "epoch"}

    def strike():
        if not killed and list(folder.glob("checkpoint-*")):
            killed.append(pids[dies])
            kill(killed[0])

    trainer = counting_trainer(
        "DOWNPOUR", tmp_path, num_servers=2, num_epoch=epochs, **batches, **saving
    )
    model = trainer.train(data, seed=1, callbacks=[from_epoch(2, strike)])
    assert killed
    assert [each["restarted"] for each in trainer.run["resumed"]] == ["server"]
    assert trainer.history.samples == ROWS * epochs
    windows = [(r.worker, r.epoch, r.window) for r in trainer.history.records]
    assert len(windows) == len(set(windows))
    np.testing.assert_array_equal(model.get_weights()[0], np.full((ROWS, 1), epochs))

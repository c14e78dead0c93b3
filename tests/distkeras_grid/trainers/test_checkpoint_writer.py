"""When checkpoints are asked for and what of the driver is in them; tests speak for the server."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from distkeras_grid.array_tree import pack
from distkeras_grid.checkpoints import CheckpointManifest
from distkeras_grid.errors import (
    DataError,
    FencedError,
    RefusedError,
    StorageError,
)
from distkeras_grid.history import History
from distkeras_grid.parameter_server.messages import CenterUpdate, SeatStatus
from distkeras_grid.records import EpochEnded
from distkeras_grid.spark.checkpoints import Checkpoint
from distkeras_grid.trainers import checkpoint_writer
from distkeras_grid.trainers.checkpoint_writer import (
    Checkpointer,
    ResumedRun,
    RunFingerprint,
    SavedDriver,
)
from tests.distkeras_grid.trainers.test_run import window
from tests.specs import make_spec


def server_state(samples, *steps):
    """A server's state; `steps`: those since version 4 of the shared optimizer, up to 6."""
    vector, zero = np.zeros(1, np.float32), {"version": 0, "samples_dropped": 0}
    ledger = {**zero, "samples_folded": samples, "stop": False, "learning_rate": None}
    ledger |= {"epochs_ended": 0, "ended": False, "seats": [], "metrics": [], "rates": []}
    replay = None
    if steps:
        ledger["version"] = 6
        taken = {str(step): {"gradient": vector, "rate": None} for step in steps}
        replay = {"version": 4, "state": None, "steps": taken}
    center = {"centers": [vector], "shared": [], "own": [[]]}
    state = {"ledger": ledger, "center": center, "replay": replay}
    return pack({**state, "worker_states": {}, "outliers": None})


class Server:
    """Captures at once; each checkpoint has the samples of the history then."""

    def __init__(self, history):
        self.history, self.asked, self.captured, self.samples = history, [], 0, None

    def begin_checkpoint(self, *, at_once=False):
        self.asked.append(at_once)

    def capture(self):
        self.captured += 1
        samples = self.history.samples if self.samples is None else self.samples
        self.parts_now = [server_state(samples), pack({"own": {}})]
        return self.update()

    def update(self):
        return CenterUpdate(9, self.history.samples, (), (), self.captured)

    def parts(self, number):
        assert number == self.captured
        return iter(self.parts_now)


class Store:
    """Keeps checkpoints in memory, as a directory would."""

    uri = "memory:/run"

    def __init__(self):
        self.written, self.error = [], None

    def next_number(self):
        return len(self.written) + 1

    def write(self, manifest, contents):
        if self.error:
            raise self.error
        own = {name: bytes(content) for name, content in contents.items()}
        CheckpointManifest.from_bytes(manifest.to_bytes())
        for piece in manifest.pieces:
            piece.check(own[piece.name])
        self.written.append((manifest, own))

    def newest(self):
        return ResumedRun.of(Checkpoint(*self.written[-1]))


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(checkpoint_writer.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Run:
    """A checkpointer with its history, its server and its store."""

    def __init__(self, every, store=None):
        self.history, self.store, self.notes = History(), store or Store(), []
        self.server = Server(self.history)
        identity = RunFingerprint("run", make_spec(), True, b"model")
        saved = {"rate": 0.5, "callbacks": [{"kind": "a.B", "attributes": {"x": 1}}]}
        self.checkpointer = Checkpointer(
            self.store, identity, every, self.history, lambda: saved, self.notes.append
        )

    def fold(self, version):
        self.history.add(window(version))

    def look(self, update=None):
        self.checkpointer.look(self.server, update or self.server.update())

    def write(self):
        self.look(self.server.capture())
        self.checkpointer.finish()


def test_a_checkpoint_is_asked_for_after_so_many_seconds(clock):
    run = Run(10)
    run.look()
    clock.now += 9
    run.look()
    assert run.server.asked == []
    clock.now += 1
    run.look()
    run.look()
    assert run.server.asked == [False]
    # The workers have not answered for as long again.
    clock.now += 10
    run.look()
    assert run.server.asked == [False, True]
    run.write()
    clock.now += 10
    run.look()
    assert run.server.asked == [False, True, False]


def test_no_checkpoint_pushes_the_last_whole_one_out_while_a_worker_is_missed(clock):
    """Workers in rounds wait for the lost one; others go on, and so do their checkpoints."""
    run = Run(10)

    def look(version, *states):
        clock.now += 10
        seats = tuple(SeatStatus(n, 7, state, 50, 5) for n, state in enumerate(states))
        run.look(CenterUpdate(version, 0, seats, ()))
        return len(run.server.asked)

    assert look(3, "running", "running") == 1
    # It was the one that was still waited for.
    assert look(4, "running", "lost") == 1
    assert look(4, "lost", "lost") == look(4, "running", "joined") == look(4, "lost", "ready") == 1
    assert look(4, "running", "running") == 2
    assert run.server.asked == [False, False]
    assert look(5, "running", "lost") == 2
    assert look(6, "running", "lost") == look(7, "finished", "lost") - 1 == 3


def test_a_file_system_that_hangs_is_waited_for_so_long_and_no_longer(monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "WRITE_SECONDS", 0.05)
    run, answers = Run(10), threading.Event()
    run.store.next_number = lambda: answers.wait(20) and 1
    run.look(run.server.capture())
    try:
        with pytest.raises(StorageError, match=run.store.uri):
            run.checkpointer.finish()
    finally:
        answers.set()
    monkeypatch.setattr(checkpoint_writer, "WRITE_SECONDS", 20)
    run.checkpointer.finish()
    assert (run.checkpointer.written, run.notes) == (1, [])


def test_a_checkpoint_that_is_given_up_is_told_and_the_next_one_waits_for_workers(clock):
    run = Run(10)
    clock.now += 10
    run.look()
    run.checkpointer.give_up("servers are in different epochs")
    assert len(run.notes) == 1
    run.look()
    assert run.server.asked == [False]
    clock.now += 10
    run.look()
    assert run.server.asked == [False, False]


def test_a_server_whose_rule_has_failed_ends_the_run_by_its_own_error(clock):
    """The next events have it, and nothing else is raised before."""
    run = Run(10)

    def refused(**_):
        raise RefusedError("There is no center to save.")

    run.server.begin_checkpoint = refused
    clock.now += 10
    run.look()
    run.look()
    assert len(run.notes) == 1


def test_a_checkpoint_is_asked_for_after_each_epoch():
    run = Run("epoch")
    for epoch in (1, 2, 3):
        run.look()
        run.history.add_epoch(EpochEnded(epoch, epoch, 10 * epoch, float(epoch)))
        run.look()
        assert len(run.server.asked) == epoch


def test_a_checkpoint_brings_the_history_and_the_driver_back(clock):
    run = Run(10)
    for version in range(1, 6):
        run.fold(version)
    run.write()
    manifest, own = run.store.written[-1]
    names = ["driver.tree", "history.jsonl", "model.keras", "seat-00000.tree", "server.tree"]
    assert sorted(own) == names
    assert (manifest.samples, manifest.version, manifest.xla) == (50, 9, True)
    found, history = run.store.newest(), History()
    found.fill(history)
    assert history.records == run.history.records
    assert (found.model, len(found.parts)) == (b"model", 2)
    np.testing.assert_array_equal(found.parts[0], run.server.parts_now[0])
    assert found.driver.observer.callbacks[0].attributes == {"x": 1}


def test_what_comes_while_a_checkpoint_is_written_is_not_in_it(clock):
    run, answers = Run(10), threading.Event()
    run.fold(1)
    parts = run.server.parts
    run.server.parts = lambda number: answers.wait(20) and parts(number)
    run.look(run.server.capture())
    run.fold(2)
    answers.set()
    run.checkpointer.finish()
    history = History()
    run.store.newest().fill(history)
    assert [record.version for record in history.records] == [1]


def test_a_checkpoint_that_fails_is_told_and_the_next_has_everything(clock):
    run = Run(10)
    run.fold(1)
    run.store.error = StorageError("full")
    run.write()
    assert len(run.notes) == 1
    assert "full" in run.notes[0]
    run.store.error = None
    run.fold(2)
    run.write()
    history = History()
    run.store.newest().fill(history)
    assert [record.version for record in history.records] == [1, 2]


def test_a_state_from_which_no_run_could_go_on_is_not_written(clock):
    """Two of them would have replaced the last checkpoint that a run can go on from."""
    run = Run(10)
    run.fold(1)
    update = run.server.capture()
    run.server.parts_now[0] = server_state(run.history.samples, 5)
    run.look(update)
    run.checkpointer.finish()
    assert run.store.written == []
    assert "lacks steps" in run.notes[0]
    update = run.server.capture()
    run.server.parts_now[0] = server_state(run.history.samples, 4, 5)
    run.look(update)
    run.checkpointer.finish()
    assert len(run.store.written) == 1


def test_a_driver_that_was_replaced_ends(clock):
    run = Run(10)
    run.store.error = FencedError("another driver")
    run.look(run.server.capture())
    with pytest.raises(FencedError):
        run.checkpointer.finish()
    assert run.notes == []


def test_a_history_that_is_not_of_the_servers_moment_is_not_written(clock):
    run = Run(10)
    run.fold(1)
    run.server.samples = 7
    run.write()
    assert run.store.written == []
    assert len(run.notes) == 1


@pytest.mark.parametrize(
    "tree",
    [{}, {"observer": {}, "resumed": []}, {"observer": None, "resumed": []}, {"more": 1}],
)
def test_what_is_no_driver_is_refused(tree):
    with pytest.raises(DataError):
        SavedDriver.from_bytes(pack(tree).tobytes())

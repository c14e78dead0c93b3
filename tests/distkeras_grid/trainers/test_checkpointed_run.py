"""Interrupted runs that go on: driver, server process and workers in threads, without Spark."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from distkeras_grid.checkpoints import Driver
from distkeras_grid.errors import FencedError, GridError, NoSpaceError, ServerUnreachableError
from distkeras_grid.feeding.batches import policy_of
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.history import History
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.progress import SILENT
from distkeras_grid.rules import build_rule, rule_of
from distkeras_grid.spark.checkpoints import CheckpointStore
from distkeras_grid.spec import LayoutSpec
from distkeras_grid.trainers.checkpoint_writer import (
    Checkpointer,
    ResumedRun,
    RunFingerprint,
)
from distkeras_grid.trainers.run import CallbackDecision, Run
from distkeras_grid.trainers.run_status import run_progress
from distkeras_grid.trainers.server_deaths import ServerDeaths
from distkeras_grid.worker.loop import train
from distkeras_grid.worker.seat import new_worker_core
from tests.invariants.small_runs import BATCH, DGC, SEAT_ROWS, SIZE, learner_of
from tests.leaks import WORKER
from tests.local_files import LocalFiles
from tests.specs import make_settings

pytestmark = pytest.mark.full

EPOCHS = 20
START = np.ones(SIZE, np.float32)


class Launch:
    """A job whose workers are threads; each window takes a moment."""

    dealing = False

    def __init__(self, settings, key, address, kind="Adam"):
        self._settings, self._key, self._address = settings, key, address
        self._kind = kind
        self._cancelled = threading.Event()
        self.spooled = []
        self._threads = [
            threading.Thread(target=self._work, args=(seat,), name=f"{WORKER}{seat}", daemon=True)
            for seat in range(settings.spec.workers)
        ]

    def _work(self, seat):
        spec = self._settings.spec
        rows = np.random.default_rng(seat).normal(size=(SEAT_ROWS, SIZE)).astype(np.float32)
        source, cancelled = ArraySource([rows], [np.zeros(SEAT_ROWS)]), self._cancelled

        class Rows:
            def blocks(self, window):
                if cancelled.wait(0.005):
                    raise GridError("cancelled")
                return source.blocks(window)

        key = seat_key(self._key, seat)
        rule = rule_of(spec.rule)
        try:
            with WorkerClient.connect(
                *(self._address, key, self._settings.run, seat, 0, SIZE, 5),
                state_size=spec.layout.state_section.nbytes,
                worker_state_limit=spec.layout.worker_state_limit,
                compression=spec.compression,
            ) as client:
                self.spooled.append(seat)
                engine = learner_of(rule, self._kind)
                start = client.ready(SEAT_ROWS)
                plan = policy_of(spec.schedule, SEAT_ROWS, seat)
                core = new_worker_core(spec, rule, engine.layout, plan, seat)
                train(core, engine, client, start, Rows())
        except GridError:
            return

    def start(self):
        for thread in self._threads:
            thread.start()

    @property
    def done(self):
        return not any(thread.is_alive() for thread in self._threads)

    def reason_of_loss(self, seat, attempt):  # noqa: ARG002
        return ""

    def wait(self, timeout):
        self._threads[0].join(timeout)
        return self.done

    failed, failures_of_a_job = (), 4

    def error(self):
        return None

    def rows(self):
        return []

    def cancel(self):
        self._cancelled.set()
        for thread in self._threads:
            thread.join(0.2)


class Observer:
    """Records epochs; at the end of one it raises an error."""

    def __init__(self, history, error=None, at=0):
        self.history, self.error, self.at, self.asked = history, error, at, []
        self.kills, self.server = [], None

    def __call__(self, event, center):  # noqa: ARG002
        self.asked.append(event.epoch)
        record = self.history.add_epoch(event)
        if event.epoch in self.kills:
            self.kills.remove(event.epoch)
            self.server._started.process.kill()
        if event.epoch == self.at:
            if callable(self.error):
                self.error()
            else:
                raise self.error
        return record, CallbackDecision()

    def record(self, event):
        return self.history.add_epoch(event)

    def saved(self):
        return {"rate": None, "callbacks": []}


class Execution:
    """One driver: it begins, or goes on from what is in the folder.

    At the end of the epochs `kills`, the server is killed. If `deaths` says that the run begins
    again, there is no center. Workers connect to the address of what
    ``through`` makes of the server. Their ``kind`` is one of `learner_of`; ``changes`` are of the
    run.
    """

    def __init__(
        self,
        folder,
        workers,
        error=None,
        at=0,
        *,
        every=None,
        kills=(),
        rule=None,
        through=nullcontext,
        files=None,
        kind="Adam",
        deaths=None,
        **changes,
    ):
        rule = rule or ("averaging" if workers > 1 else "downpour")
        rule = build_rule(rule, {}) if isinstance(rule, str) else rule
        learner = learner_of(rule, kind)
        shared = learner.step_section if rule.traits.steps_on_workers else None
        self.settings = make_settings(
            rule=rule,
            layout=LayoutSpec.of(learner.layout, shared, worker_state_limit=1 << 16),
            rows=SEAT_ROWS * workers,
            workers=workers,
            epochs=EPOCHS,
            batch_size=BATCH,
            seed=4,
            compression=DGC if kind == "DGC" else None,
            **changes,
        )
        self.history, self.notes, spec = History(), [], self.settings.spec
        self.observer, key = Observer(self.history, error, at), new_key()
        store = CheckpointStore(files or LocalFiles(), str(folder), Driver("test"))
        found = store.newest(self.notes.append)
        self.resumed = None if found is None else ResumedRun.of(found)
        if self.resumed:
            self.resumed.fill(self.history)
        store.begin(anew=found is None)
        identity = RunFingerprint("test", spec, False, b"model")
        checkpointer = Checkpointer(
            store,
            identity,
            every or 600,
            self.history,
            self.observer.saved,
            self.notes.append,
        )
        parts = self.resumed.parts_for(spec) if self.resumed else ()
        since = self.resumed.manifest.version if self.resumed else 0
        with (
            ServerProcess(self.settings, START.copy(), key, parts) as server,
            through(server) as door,
            run_progress(SILENT) as progress,
        ):
            launch = self.launch = Launch(self.settings, key, door.address, kind)
            self.observer.kills = kills
            self.observer.server = server
            progress.update(total_samples=1, epochs=EPOCHS, workers=workers)
            run = Run(
                server,
                launch,
                spec,
                self.history,
                progress,
                self.observer,
                checkpointer,
                since,
            )
            try:
                self.center, _ = run.execute()
            except ServerUnreachableError as death:
                ended = SimpleNamespace(
                    lost_server=run.lost_server, checkpointer=checkpointer, history=self.history
                )
                if deaths is None or not deaths.survived(death, ended, progress):
                    raise
                self.center = None
        self.written = checkpointer.written


@pytest.mark.parametrize(
    ("workers", "error"), [(2, KeyboardInterrupt), (1, GridError), (1, KeyboardInterrupt)]
)
@pytest.mark.promise(
    "driver: interrupted, or an error of a callback, with checkpoints",
    "A last checkpoint is written; the run goes on bit for bit.",
)
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path, workers, error):
    whole = Execution(tmp_path / "whole", workers)
    assert whole.resumed is None
    with pytest.raises(error) as raised:
        Execution(tmp_path / "other", workers, error("of a callback"), at=7)
    assert not hasattr(raised.value, "__notes__"), raised.value.__notes__
    second = Execution(tmp_path / "other", workers)
    assert 7 <= second.resumed.manifest.epochs < EPOCHS
    np.testing.assert_array_equal(second.center, whole.center)
    assert second.history.samples == whole.history.samples
    assert second.history.history == whole.history.history
    # No epoch is told twice.
    assert second.observer.asked == list(range(second.resumed.manifest.epochs + 1, EPOCHS + 1))
    assert second.notes == []


class FullDisk(LocalFiles):
    """Has no room for one of its writes. `Storage` leaves no file that it could not complete."""

    def __init__(self, number):
        super().__init__()
        self.writes, self.full = 0, number

    def write_bytes(self, uri, content, *, overwrite=False):
        self.writes += 1
        if self.writes == self.full:
            raise NoSpaceError(f"Cannot write {uri}: no space is left.")
        super().write_bytes(uri, content, overwrite=overwrite)


@pytest.mark.promise(
    "disk of the checkpoints: full",
    "The run goes on and ends as without; a line says that a checkpoint could not be written.",
)
@pytest.mark.parametrize("number", [2, 5])
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path, number):
    """The first write is that of the generation, the next ones are those of a checkpoint."""
    whole = Execution(tmp_path / "whole", 2)
    files = FullDisk(number)
    run = Execution(tmp_path / "full", 2, every=0.01, files=files)
    np.testing.assert_array_equal(run.center, whole.center)
    assert len(run.notes) == 1
    assert run.written >= 1
    # The last one has everything.
    again = Execution(tmp_path / "full", 2)
    assert again.resumed.manifest.samples == whole.history.samples
    assert again.notes == []


def windows_of(history):
    return sorted((record.worker, record.epoch, record.window) for record in history.records)


def surviving(folder, workers, **terms):
    """Return the executions of a run that begins again when its server has died, as `train` does.

    The last one has the result.
    """
    deaths, found = ServerDeaths(), []
    while not found or found[-1].center is None:
        found.append(Execution(folder, workers, deaths=deaths, **terms))
    return found


@pytest.mark.parametrize(
    ("workers", "every", "kills"),
    [(2, "epoch", [8, EPOCHS]), (1, "epoch", [8, 15]), (2, None, [2])],
)
def test_a_run_begins_again_from_its_newest_checkpoint_when_its_server_has_died(
    tmp_path, workers, every, kills
):
    whole, deaths = Execution(tmp_path / "whole", workers), len(kills)
    runs = surviving(tmp_path / "killed", workers, every=every, kills=[*kills])
    run = runs[-1]
    np.testing.assert_array_equal(run.center, whole.center)
    assert windows_of(run.history) == windows_of(whole.history)
    assert run.history.history == whole.history.history
    # Both epochs may be told at once, after the first kill.
    assert 2 <= len(runs) <= 1 + deaths
    # The driver looks ten times a second, so it may take several epochs until the first one.
    assert (run.resumed is not None) == (every is not None)


@pytest.mark.parametrize("rule", ["downpour", "dynamic_rate"])
def test_no_window_is_lost_or_repeated_where_workers_do_not_wait(tmp_path, rule):
    terms = {"every": 0.05, "kills": [5, 9, 14, EPOCHS], "rule": rule}
    run = surviving(tmp_path, 3, **terms)[-1]
    windows = windows_of(run.history)
    assert len(windows) == len(set(windows)) == 3 * EPOCHS * 3
    assert run.history.samples == 3 * SEAT_ROWS * EPOCHS


@pytest.mark.promise(
    "server: killed again and again without a new checkpoint",
    "The run ends with `ServerUnreachableError` at the fourth death.",
)
def test_a_server_that_dies_again_and_again_ends_the_run(tmp_path):
    kills = [1] * 5
    with pytest.raises(ServerUnreachableError) as raised:
        surviving(tmp_path, 1, kills=kills)
    assert len(raised.value.__notes__) == 1
    assert len(kills) == 1


@pytest.mark.promise(
    "driver: replaced, but still training",
    "It ends with `FencedError` at its next checkpoint.",
)
def test_a_driver_whose_checkpoints_another_one_writes_ends(tmp_path):
    folder = tmp_path / "shared"

    def take_over():
        CheckpointStore(LocalFiles(), str(folder), Driver("another")).begin(anew=False)

    with pytest.raises(FencedError) as raised:
        Execution(folder, 2, take_over, at=4, every="epoch")
    assert not hasattr(raised.value, "__notes__"), raised.value.__notes__
    whole = Execution(tmp_path / "whole", 2)
    np.testing.assert_array_equal(Execution(folder, 2).center, whole.center)

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
    """Records epochs; at the end of the fourth one it calls a function."""

    def __init__(self, history, act):
        self.history, self.act = history, act

    def __call__(self, event, center):  # noqa: ARG002
        record = self.history.add_epoch(event)
        if event.epoch == 4:
            self.act()
        return record, CallbackDecision()

    def record(self, event):
        return self.history.add_epoch(event)

    def saved(self):
        return {"rate": None, "callbacks": []}


class Execution:
    """One driver: it begins, or goes on from what is in the folder.

    At the end of the fourth epoch `act` is called. If `deaths` says that the run begins again,
    there is no center. Workers connect to the address of what ``through`` makes of the server.
    Their ``kind`` is one of `learner_of`; ``changes`` are of the run.
    """

    def __init__(
        self,
        folder,
        workers,
        *,
        act=lambda: None,
        every=None,
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
        self.observer, key = Observer(self.history, act), new_key()
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


@pytest.mark.promise(
    "driver: replaced, but still training",
    "It ends with `FencedError` at its next checkpoint.",
)
def test_a_driver_whose_checkpoints_another_one_writes_ends(tmp_path):
    folder = tmp_path / "shared"

    def take_over():
        CheckpointStore(LocalFiles(), str(folder), Driver("another")).begin(anew=False)

    with pytest.raises(FencedError) as raised:
        Execution(folder, 2, act=take_over, every="epoch")
    assert not hasattr(raised.value, "__notes__"), raised.value.__notes__
    whole = Execution(tmp_path / "whole", 2)
    np.testing.assert_array_equal(Execution(folder, 2).center, whole.center)

"""The driver's loop over a server and a job that say what a test has written."""

from __future__ import annotations

import time

import msgspec
import numpy as np
import pytest
from pyspark.sql import Row

from distkeras_grid.errors import (
    ClusterError,
    FencedError,
    NonFiniteLossError,
    ServerUnreachableError,
    StartTimeoutError,
    StorageError,
    TrainingError,
)
from distkeras_grid.history import History
from distkeras_grid.parameter_server.messages import CenterUpdate, SeatStatus
from distkeras_grid.progress import SILENT
from distkeras_grid.records import EpochEnded, WindowRecord, WorkerRecord
from distkeras_grid.trainers import run
from distkeras_grid.trainers.run import CallbackDecision, Run
from distkeras_grid.trainers.run_status import run_progress
from tests.records import window_record
from tests.specs import make_spec

ROWS = 20


def window(version, **changes):
    return window_record(version, **{"attempt": 7, "window": version, "seconds": 0.1, **changes})


def epoch(number, version):
    return EpochEnded(number, version, ROWS * number, float(number))


class Server:
    """Tells one list of events after the other."""

    def __init__(self, *news):
        self.news, self.told, self.samples, self.commands = [*news], 0, 0, []

    def poll(self, captured=0, wait_seconds=0.0):  # noqa: ARG002
        events = self.news.pop(0) if self.news else ()
        self.samples += sum(e.samples for e in events if isinstance(e, WindowRecord))
        self.told += len(events)
        state = "running" if self.news else "finished"
        return CenterUpdate(
            self.told, self.samples, (SeatStatus(0, 7, state, ROWS, self.samples),), tuple(events)
        )

    def command(self, stop=None, learning_rate=None, *, epochs=None):  # noqa: ARG002
        self.commands.append((stop, learning_rate))

    def center(self, snapshot=None, seat=0):  # noqa: ARG002
        return np.zeros(8, np.float32)


class Launch:
    """A job that ends when the server has nothing more to tell, or fails at once, so often."""

    failures_of_a_job = 4
    dealing = False

    def __init__(self, server, error=None, endless=False, failures=1):
        self.server, self.reason, self.endless, self.cancelled = server, error, endless, False
        self.failures, self.submitted = failures if error else 0, 1

    def start(self):
        pass

    @property
    def done(self):
        return not self.endless and (bool(self.failed) or not self.server.news)

    @property
    def failed(self):
        return (0,) if self.submitted <= self.failures else ()

    def error(self, seat=0):  # noqa: ARG002
        return self.reason if self.failed else None

    def again(self, seat):  # noqa: ARG002
        self.submitted += 1

    def reason_of_loss(self, seat, attempt):  # noqa: ARG002
        return "Exit status: 137"

    def wait(self, timeout):  # noqa: ARG002
        return self.done

    def rows(self):
        return []

    def cancel(self):
        self.cancelled = True


def executed(
    server,
    launch=None,
    epochs=3,
    stop_at=None,
    workers=1,
    checkpointer=None,
    history=None,
    to=SILENT,
    runs=None,
    **limits,
):
    """Return the history of a run whose callback stops it at the end of an epoch."""
    history = History() if history is None else history
    launch = launch or Launch(server)

    def observer(event, center):
        record = history.add_epoch(event)
        return record, CallbackDecision(stop=True if event.epoch == stop_at else None)

    spec = make_spec(rows=ROWS, epochs=epochs, workers=workers, snapshots_per_epoch=1, **limits)
    with run_progress(to) as progress:
        progress.update(total_samples=ROWS * epochs, epochs=epochs, workers=workers)
        try:
            run = Run(server, launch, spec, history, progress, observer, checkpointer)
            if runs is not None:
                runs.append(run)
            run.execute()
        finally:
            assert launch.cancelled
    return history


EPOCHS = [[window(2 * n - 1), window(2 * n), epoch(n, 2 * n)] for n in (1, 2, 3)]


def test_a_lost_worker_is_one_line_and_its_record_has_the_reason():
    lines = []
    lost = WorkerRecord(0, 7, "lost", 20, at=0.0, host="node-3", log="/logs/stderr", tries=2)
    broken = WorkerRecord(0, 8, "lost", 20, at=1.0)
    news = [[lost], [*EPOCHS[0], broken, WorkerRecord(0, 8, "resumed")], *EPOCHS[1:]]
    history = executed(Server(*news), to=lines.append)
    (line,) = [line for line in lines if "lost" in line]
    assert line.startswith("Worker 0 on node-3 was lost at ")
    assert line.endswith(
        "after 0 windows (try 2, Spark task 7): Exit status: 137 Its log: /logs/stderr"
    )
    assert history.workers[0] == msgspec.structs.replace(lost, message="Exit status: 137")
    assert [record.message for record in history.workers[1:]] == ["", ""]


@pytest.mark.parametrize(
    "news", [EPOCHS, [[event for news in EPOCHS for event in news]]], ids=["apart", "at once"]
)
def test_after_an_early_stop_all_that_is_told_ends_with_its_epoch(news):
    server = Server(*news, [WorkerRecord(0, 7, "finished")])
    history = executed(server, stop_at=2)
    assert server.commands == [(True, None)]
    assert history.epoch == [0, 1]
    assert len(history.history["loss"]) == 2
    assert history.samples == 2 * ROWS == history.to_pandas()["samples"].sum()
    assert [record.version for record in history.records] == [1, 2, 3, 4]
    # How the workers ended is told.
    assert [record.status for record in history.workers] == ["finished"]


class HungCheckpoints:
    """Checkpoints on a file system that answers no more once the last epoch has ended."""

    captured = 0

    def __init__(self, error):
        self.error, self.told = error, []

    def look(self, *_, **__):
        pass

    def finish(self):
        raise self.error

    def give_up(self, reason):
        self.told.append(reason)


def test_a_complete_model_is_not_lost_with_its_last_checkpoint():
    checkpointer = HungCheckpoints(StorageError("nothing for 600 s"))
    assert executed(Server(*EPOCHS), checkpointer=checkpointer).samples == 3 * ROWS
    assert len(checkpointer.told) == 1


def test_a_driver_whose_place_was_taken_ends_by_that():
    with pytest.raises(FencedError):
        executed(Server(*EPOCHS), checkpointer=HungCheckpoints(FencedError("Another one has it.")))


class Mortal(Server):
    """Dies after so many answers."""

    def __init__(self, *news, answers):
        super().__init__(*news)
        self.answers = answers

    def poll(self, captured=0, wait_seconds=0.0):
        if self.told and not self.answers:
            raise ServerUnreachableError("It is gone.")
        self.answers -= 1
        return super().poll(captured, wait_seconds)


def test_a_run_whose_server_has_died_says_so():
    runs = []
    with pytest.raises(ServerUnreachableError):
        executed(Mortal(*EPOCHS, answers=1), runs=runs)
    assert runs[0].lost_server


def test_how_workers_ended_is_told_though_their_job_was_faster():
    """They are seen off by the job's end, which may come before the next look at the server."""

    class Fast(Launch):
        done = True

    server = Server(*EPOCHS[:1], [WorkerRecord(0, 7, "finished")], [])
    history = executed(server, Fast(server), stop_at=1)
    assert [record.status for record in history.workers] == ["finished"]


def test_workers_that_do_not_stop_are_cancelled(monkeypatch):
    monkeypatch.setattr(run, "FINISH_SECONDS", 0.0)
    server = Server(*EPOCHS, *[[]] * 1000)
    launch = Launch(server, endless=True)
    assert executed(server, launch, stop_at=1).epoch == [0]
    assert len(server.news) > 900


def test_workers_in_a_long_window_are_not_waited_for_after_an_early_stop():
    """They would hear of the stop when it is over."""
    begun = [window(1, seconds=run.SHORT_WINDOW + 1), window(2), epoch(1, 2)]
    server = Server(begun, *[[]] * 50)
    assert executed(server, Launch(server, endless=True), stop_at=1).epoch == [0]
    assert len(server.news) == 50


def test_rows_that_are_missing_end_the_run():
    with pytest.raises(TrainingError):
        executed(Server(*EPOCHS[:2]))


def test_a_job_that_fails_gives_its_own_reason():
    server = Server(*EPOCHS, *[[]] * 100)
    with pytest.raises(ClusterError, match="no memory"):
        executed(server, Launch(server, ClusterError("no memory"), failures=99))


def test_a_job_that_fails_in_a_run_that_gets_on_is_submitted_again():
    server = Server(*EPOCHS)
    launch = Launch(server, ClusterError("executor lost"), failures=2)
    assert executed(server, launch).samples == 3 * ROWS
    assert launch.submitted == 3


def test_a_worker_that_has_finished_is_not_started_again(monkeypatch):
    """Its executor dies before the other worker has finished."""

    class First(Server):
        def poll(self, captured=0, wait_seconds=0.0):
            update = super().poll(captured, wait_seconds)
            (other,) = update.seats
            first = SeatStatus(0, 6, "finished", 0, 0)
            return msgspec.structs.replace(
                update, seats=(first, msgspec.structs.replace(other, worker=1))
            )

    monkeypatch.setattr(run, "FINISH_SECONDS", 0.0)
    server = First(*EPOCHS)
    launch = Launch(server, ClusterError("executor lost"), endless=True, failures=99)
    assert executed(server, launch, workers=2).samples == 3 * ROWS
    assert launch.submitted == 1


class Two(Server):
    """Worker 1 gets on and finishes, and worker 0 is lost."""

    def poll(self, captured=0, wait_seconds=0.0):
        update = super().poll(captured, wait_seconds)
        (other,) = update.seats
        lost = SeatStatus(0, 6, "lost", ROWS, 0, heartbeats=1, host="node-0", log="/logs/0")
        return msgspec.structs.replace(
            update, seats=(lost, msgspec.structs.replace(other, worker=1))
        )


class Unreached(Launch):
    """A job that fails each time, because of the network of its host."""

    def __init__(self, server):
        super().__init__(server, ServerUnreachableError("No way to 10.0.0.7."), True, failures=99)


@pytest.mark.promise(
    "worker: killed whenever it starts",
    "It is given up after four failures, and trainers without rounds go on; at last one error "
    "names it, its host, last sign of life and log.",
)
def test_a_worker_that_is_given_up_does_not_end_the_work_of_others():
    news = [[window(n, worker=1), epoch(n, n)] for n in (1, 2, 3)]
    server, history, notes, runs = Two(*news), History(), [], []
    with pytest.raises(ServerUnreachableError) as raised:
        executed(
            *(server, Unreached(server)),
            **{"workers": 2, "history": history, "to": notes.append, "runs": runs},
        )
    assert history.samples == 3 * 10
    assert server.news == []
    for told in ("10.0.0.7", "worker 0 on node-0", "sign of life", "/logs/0"):
        assert told in str(raised.value)
    assert not hasattr(raised.value, "__notes__")
    # The server is well.
    assert not runs[0].lost_server
    (given_up,) = [record for record in history.workers if record.status == "given up"]
    assert (given_up.worker, given_up.error) == (0, "ServerUnreachableError")
    assert sum("orker 0 is given up" in line and "10.0.0.7" in line for line in notes) == 1


class OneCancelled(Launch):
    """Two jobs, one of which is cancelled at the end: its worker is late, and a quorum is there."""

    def error(self, seat=None):  # noqa: ARG002
        return ClusterError("The job was cancelled.")

    def rows(self):
        return [Row(worker=1, rows=ROWS)]


def test_a_late_worker_costs_no_other_workers_summary():
    def observer(event, _):
        return History().add_epoch(event), CallbackDecision()

    server, notes = Server(*EPOCHS), []
    spec = make_spec(rows=ROWS, epochs=3, snapshots_per_epoch=1)
    with run_progress(notes.append) as progress:
        parts = (server, OneCancelled(server), spec, History(), progress, observer)
        _, summaries = Run(*parts).execute()
    assert summaries == [{"worker": 1, "rows": ROWS}]
    assert sum("was cancelled" in line for line in notes) == 1


def test_what_a_worker_reports_ends_the_run_by_its_name():
    failed = WorkerRecord(0, 7, "failed", error="NonFiniteLossError", message="NaN.")
    with pytest.raises(NonFiniteLossError, match=r"^NaN\. .* worker 0 on node-0 .*/logs/0"):
        executed(Two(*EPOCHS[:1], [failed], []), workers=2)


class Absent(Server):
    """Nobody ever comes."""

    def poll(self, captured=0, wait_seconds=0.0):  # noqa: ARG002
        return CenterUpdate(0, 0, (SeatStatus(0, -1, "absent", None, 0),), ())


class Dealing(Launch):
    """A job whose rows are dealt for a while."""

    def __init__(self, server, looks):
        super().__init__(server, endless=True)
        self.looks = looks

    @property
    def dealing(self):
        self.looks -= 1
        return self.looks > 0

    def wait(self, timeout):  # noqa: ARG002
        time.sleep(0.01)
        return False


def test_rows_may_be_dealt_for_longer_than_the_workers_have_to_start():
    launch, began = Dealing(Absent(), looks=100), time.monotonic()
    with pytest.raises(StartTimeoutError, match="0 of 1 workers"):
        executed(launch.server, launch, start_timeout=0.2)
    assert launch.looks <= 0
    assert time.monotonic() - began > 0.5

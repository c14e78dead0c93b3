"""One training run: the server's process, Spark's job and the driver's loop between them.

Who owns what: the server folds commits and counts epochs; Spark runs the workers and starts one
again that died; this loop reads the server's events into the history, shows progress, lets the
observer act at each epoch's end, and ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import (
    ClusterError,
    GridError,
    StartTimeoutError,
    TrainingError,
    WorkerFailedError,
    error_named,
)
from distkeras_grid.parameter_server.messages import EVENTS_PER_UPDATE, SeatStatus, Update
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.records import EpochEnded, EpochRecord, Event, WorkerRecord
from distkeras_grid.trainers.run_status import TRAINING, RunProgress

if TYPE_CHECKING:
    from distkeras_grid.history import History
    from distkeras_grid.spark.launch import Launch
    from distkeras_grid.trainers.capacity import NetworkNeed
    from distkeras_grid.weights import Vector

# How often the driver asks the server for news. A request costs the server well under a
# millisecond, and the last commit is noticed within this time.
POLL_SECONDS = 0.1

# Tasks whose workers have finished end at once. The run is complete by then: nobody waits longer
# for a task that Spark has to run again because its executor died in this moment.
FINISH_SECONDS = 10.0

# What a seat's worker does while it counts as one of "2 of 4 workers".
WORKING = ("ready", "running")

# What nobody does in a seat that waits for its first worker, or for another one.
MISSING = ("absent", "lost")

# A worker whose windows take longer than usual is not silent: so many windows it may be.
SILENT_WINDOWS = 20


@dataclass(frozen=True)
class Steering:
    """What the observer of an epoch wants changed; None leaves a thing as it is."""

    stop: bool | None = None
    learning_rate: float | None = None


# Called at an epoch's end with the event and, if asked for, the center; records the epoch.
Observer = Callable[[EpochEnded, "Vector | None"], tuple[EpochRecord, Steering]]


@dataclass(frozen=True)
class RunLimits:
    """What a run may take, and what it must bring.

    Parameters
    ----------
    workers, rows, epochs : int
        Seats, rows of the data, passes over them.
    needed : int
        Workers that must finish; the others' late windows are dropped.
    start_timeout : float
        Seconds until all workers must have started, and those that died must have been replaced.
    silence_timeout : float or None
        Seconds without a commit after which a worker's task is started again; None where the
        server watches over that, in synchronous rounds.
    shows_center : bool
        Whether the observer looks at the center at each epoch's end.
    network : callable
        Gives the `NetworkNeed` for the measured ``window_seconds``.
    """

    workers: int
    rows: int
    epochs: int
    needed: int
    start_timeout: float
    silence_timeout: float | None
    shows_center: bool
    network: Callable[..., NetworkNeed]


class Run:
    """Watches one run from the first task to the last commit.

    Parameters
    ----------
    server : ServerProcess
        Started.
    launch : Launch
        The job that holds the workers, not started yet.
    limits : RunLimits
        See there.
    history : History
        Filled with the server's events; empty.
    progress : RunProgress
        Shown while the run goes on.
    observer : callable
        Called at each epoch's end.
    """

    def __init__(
        self,
        server: ServerProcess,
        launch: Launch,
        limits: RunLimits,
        history: History,
        progress: RunProgress,
        observer: Observer,
    ) -> None:
        self._server = server
        self._launch = launch
        self._limits = limits
        self._history = history
        self._progress = progress
        self._observer = observer
        self._window_seconds: dict[int, float] = {}
        self._stopped = False
        self._missing_since: float | None = None
        # Of each seat at work: what the server last said of it, and since when it says so.
        self._heard: dict[int, tuple[SeatStatus, float]] = {}

    def execute(self) -> tuple[Vector, list[dict[str, Any]]]:
        """Run to the end; return the center and what each worker reported of itself.

        Raises
        ------
        GridError
            What ended the run; the workers' tasks are cancelled before it is raised.
        """
        try:
            self._launch.start()
            while not self._advance():
                self._launch.wait(POLL_SECONDS)
            center = self._server.center()
            summaries = self._finish_job()
            localities = self._launch.localities()
            self._history.add_localities(localities.workers, localities.reading)
        finally:
            # Also on an interrupt: no executor goes on for a run nobody waits for.
            self._launch.cancel()
        return center, summaries

    def _advance(self) -> bool:
        """Take in the server's news; return whether every worker has finished."""
        ended = self._launch.done
        update = self._news()
        self._show(update)
        finished = sum(seat.status == "finished" for seat in update.seats)
        if finished >= self._limits.needed:
            self._check_samples(update)
            return True
        if ended:
            self._launch_failed(update)
        self._check_presence(update)
        self._check_silence(update)
        return False

    def _news(self) -> Update:
        """Take in all events so far; return the state of the run with the last of them."""
        while True:
            update = self._server.poll()
            for event in update.events:
                self._take(event)
            if len(update.events) < EVENTS_PER_UPDATE:
                return update

    def _take(self, event: Event) -> None:
        if isinstance(event, EpochEnded):
            self._end_epoch(event)
            return
        self._history.add(event)
        if isinstance(event, WorkerRecord):
            self._check_network(event)
            if event.status == "failed":
                # Workers report only what another attempt would meet again.
                raise failure_of(event)

    def _check_network(self, event: WorkerRecord) -> None:
        """Say what the run asks of the network, once all workers have measured their window."""
        complete = len(self._window_seconds) == self._limits.workers
        if complete or not event.window_seconds:
            return
        self._window_seconds[event.worker] = event.window_seconds
        if len(self._window_seconds) == self._limits.workers:
            seconds = sum(self._window_seconds.values()) / self._limits.workers
            self._progress.note(self._limits.network(window_seconds=seconds).sentence())

    def _end_epoch(self, event: EpochEnded) -> None:
        center = self._server.center(event.epoch) if self._limits.shows_center else None
        if self._stopped:
            return
        if center is not None:
            self._progress.update(busy_with=f"evaluating epoch {event.epoch}")
        record, steering = self._observer(event, center)
        self._progress.update(busy_with="")
        self._progress.note(epoch_line(record, self._limits.epochs))
        if steering.stop or steering.learning_rate is not None:
            self._server.command(stop=steering.stop, learning_rate=steering.learning_rate)
            self._stopped = bool(steering.stop)

    def _show(self, update: Update) -> None:
        recent = self._history.records[-4 * self._limits.workers :]
        samples = sum(record.samples for record in recent)
        working = sum(seat.status in WORKING for seat in update.seats)
        if not recent:
            phase = "getting ready" if self._launch_has_begun(update) else None
            self._progress.update(phase=phase, active=working)
            return
        self._progress.update(
            phase=TRAINING,
            epoch=min(self._limits.epochs, 1 + update.samples_folded // self._limits.rows),
            samples=update.samples_folded,
            active=working,
            loss=sum(record.loss * record.samples for record in recent) / samples,
            staleness=sum(record.staleness for record in recent) / len(recent),
        )

    def _launch_has_begun(self, update: Update) -> bool:
        return any(seat.status != "absent" for seat in update.seats)

    def _check_samples(self, update: Update) -> None:
        expected = self._limits.epochs * self._limits.rows
        recorded = self._history.samples
        whole = not self._stopped and self._limits.needed == self._limits.workers
        if recorded != update.samples_folded or (whole and recorded != expected):
            raise TrainingError(
                f"The server folded {update.samples_folded} samples and the history has "
                f"{recorded}, but {self._limits.epochs} epochs of {self._limits.rows} rows are "
                f"{expected}."
            )

    def _check_presence(self, update: Update) -> None:
        """Refuse to wait longer than allowed for workers that are not there."""
        missing = sum(seat.status in MISSING for seat in update.seats)
        # A quorum goes on without the others once all have started.
        spare = self._limits.workers - self._limits.needed if update.version else 0
        now = time.monotonic()
        if missing <= spare:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since > self._limits.start_timeout:
            wanted = self._limits.workers
            raise StartTimeoutError(
                f"Only {wanted - missing} of {wanted} workers started in "
                f"{self._limits.start_timeout:.0f} s. "
                f"Each needs a task slot of its own for the whole run: give Spark {wanted} slots "
                "(spark.executor.instances x spark.executor.cores / spark.task.cpus, or "
                "local[N,4]), lower num_workers, or raise start_timeout if executors are still "
                "on their way."
            )

    def _check_silence(self, update: Update) -> None:
        """Have Spark start a worker again that neither commits nor dies."""
        if self._limits.silence_timeout is None:
            return
        now = time.monotonic()
        for seat in update.seats:
            before, since = self._heard.get(seat.worker, (None, now))
            if seat != before or seat.status != "running":
                since = now
            self._heard[seat.worker] = (seat, since)
            window = self._window_seconds.get(seat.worker, 0.0)
            if now - since > max(self._limits.silence_timeout, SILENT_WINDOWS * window):
                self._progress.note(
                    f"Worker {seat.worker} has sent nothing for {now - since:.0f} s: its task is "
                    "started again."
                )
                self._launch.restart(seat.attempt)
                self._heard[seat.worker] = (seat, now)

    def _launch_failed(self, update: Update) -> None:
        """Raise what ended the job before its workers had finished."""
        self._launch.result()
        states = ", ".join(f"{seat.worker}: {seat.status}" for seat in update.seats)
        raise ClusterError(f"Spark's job ended before the workers had finished ({states}).")

    def _finish_job(self) -> list[dict[str, Any]]:
        """Return the workers' summaries; the center is complete, with or without them."""
        problem = f"it did not end in {FINISH_SECONDS:.0f} s"
        if self._launch.wait(FINISH_SECONDS):
            try:
                return [row.asDict() for row in self._launch.result()]
            except GridError as error:
                problem = str(error)
        self._progress.note(ending_note(self._limits, problem))
        return []


def ending_note(limits: RunLimits, problem: str) -> str:
    """Return what is said where the workers' job has not ended with the training.

    Examples
    --------
    >>> limits = RunLimits(5, 100, 1, 4, 300.0, None, False, network=dict)
    >>> ending_note(limits, "it did not end")
    'All is trained by a quorum of 4 of 5 workers; late ones were left behind: it did not end'
    """
    if limits.needed < limits.workers:
        return (
            f"All is trained by a quorum of {limits.needed} of {limits.workers} workers; late ones "
            f"were left behind: {problem}"
        )
    return f"All is trained, but the workers' job did not end well: {problem}"


def failure_of(event: WorkerRecord) -> GridError:
    """Build the exception that the record of a failed worker names.

    Examples
    --------
    >>> failure_of(WorkerRecord(0, 7, "failed", error="NonFiniteLossError", message="NaN"))
    NonFiniteLossError('NaN')
    >>> failure_of(WorkerRecord(1, 8, "failed", error="MemoryError", message="no memory"))
    WorkerFailedError('Worker 1 failed with MemoryError: no memory')
    """
    return error_named(event.error, event.message, GridError) or WorkerFailedError(
        f"Worker {event.worker} failed with {event.error}: {event.message}"
    )


def epoch_line(record: EpochRecord, epochs: int) -> str:
    """Return the line that stays when an epoch has ended.

    Examples
    --------
    >>> epoch_line(EpochRecord(1, 7, 640, 0.0, 2.5, 0.71, {"accuracy": 0.5}), 3)
    'epoch 1/3 ended after 2.5 s: loss 0.71, accuracy 0.5'
    """
    told = ", ".join(f"{name} {value:.4g}" for name, value in record.logs().items())
    return f"epoch {record.epoch}/{epochs} ended after {record.seconds:.1f} s: {told}"

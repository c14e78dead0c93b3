"""One training run: the server's process, Spark's job and the driver's loop between them.

The server folds commits and counts epochs. Spark runs the workers, and starts a worker that died
again. This loop reads the server's events into the history, shows progress, calls the observer at
the end of each epoch, and ends the run.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from distkeras_grid.errors import (
    ClusterError,
    FencedError,
    GridError,
    ServerUnreachableError,
    StorageError,
    WorkerFailedError,
    error_named,
)
from distkeras_grid.parameter_server.messages import EVENTS_PER_UPDATE, CenterUpdate, SeatStatus
from distkeras_grid.parameter_server.retry_policy import RetryPolicy
from distkeras_grid.parameter_server.run_monitor import (
    CallbackStop,
    FinishRun,
    MonitorEvent,
    Restart,
    RunMonitor,
    StartRun,
    StatusUpdate,
    WindowTime,
)
from distkeras_grid.parameter_server.sharded_process import AnyServer
from distkeras_grid.parameter_server.timeouts import (
    FINISH_SECONDS,
    LAST_SECONDS,
    POLL_SECONDS,
    SHORT_WINDOW,
)
from distkeras_grid.records import (
    EpochEnded,
    EpochRecord,
    Event,
    SkippedRecord,
    WorkerRecord,
)
from distkeras_grid.spec import RunSpec
from distkeras_grid.trainers.losses import Losses, loss_line
from distkeras_grid.trainers.run_status import TRAINING, RunProgress

if TYPE_CHECKING:
    from distkeras_grid.history import History
    from distkeras_grid.spark.worker_jobs import WorkerJobs
    from distkeras_grid.trainers.checkpoint_writer import Checkpointer
    from distkeras_grid.weights import Vector

# States in which a worker counts as one of "2 of 4 workers".
WORKING = ("ready", "running")


@dataclass(frozen=True)
class CallbackDecision:
    """What the observer of an epoch wants to change; None leaves a setting as it is."""

    stop: bool | None = None
    learning_rate: float | None = None


class EpochCallback(Protocol):
    """Records the epochs of a run, and returns what to change after them."""

    def __call__(
        self, event: EpochEnded, center: Vector | None
    ) -> tuple[EpochRecord, CallbackDecision]:
        """Record an epoch that has ended; `center` is that of the moment, if it is needed."""
        ...

    def record(self, event: EpochEnded) -> EpochRecord:
        """Record an epoch of a run that ends early, and do nothing more."""
        ...


class Run:
    """Runs the workers' jobs until the last commit, as a `RunMonitor` decides."""

    def __init__(
        self,
        server: AnyServer,
        launch: WorkerJobs,
        spec: RunSpec,
        history: History,
        progress: RunProgress,
        observer: EpochCallback,
        checkpointer: Checkpointer | None = None,
        since: int = 0,
    ) -> None:
        self._server = server
        self._jobs = launch
        self._spec = spec
        self._history = history
        self._progress = progress
        self._observer = observer
        self._monitor = RunMonitor(spec, since=since)
        self._retries = RetryPolicy()
        # Whether the jobs have ended.
        self._ended = False
        # Workers whose jobs are not submitted any more, and why; and those not told of yet.
        self._final_errors: dict[int, GridError] = {}
        self._unreported: list[int] = []
        # The error with which the monitor has ended the run.
        self._error: GridError | None = None
        # The seats as the server has told them last.
        self._seats: tuple[SeatStatus, ...] = ()
        self.lost_server = False
        self._finished = False
        self._checkpointer = checkpointer
        self._losses = Losses(self._note_loss)
        # Where workers wait for the driver, its question waits at the server, not the driver [s].
        self._wait_seconds = POLL_SECONDS if spec.schedule.epoch_barrier else 0.0
        # Skipped windows of each worker.
        self._skips = Counter[int]()
        # Events that were received but not recorded yet, and the epoch that is being recorded.
        self._events: deque[Event] = deque()
        self._ending: EpochEnded | None = None
        # Whether the run ends early, so that the observer is no longer called for its epochs.
        self._ends_early = False

    def execute(self) -> tuple[Vector, list[dict[str, Any]]]:
        """Run to the end; return the center and the summary of each worker."""
        try:
            self._jobs.start()
            center = self._train()
            summaries = self._finish_job()
        except BaseException as error:
            # An error of the verdict is a worker's, and the server is well.
            unreachable = isinstance(error, ServerUnreachableError)
            self.lost_server = unreachable and error is not self._error
            self._write_before_error(error)
            raise
        finally:
            # This happens on an interrupt, too, so that no executor works for a run that has ended.
            self._jobs.cancel()
        return center, summaries

    def _train(self) -> Vector:
        """Watch the run until it is complete; return the center, after a last checkpoint."""
        while not self._finished:
            self._advance()
            if not self._finished:
                self._jobs.wait(POLL_SECONDS - self._wait_seconds)
        center = self._server.center()
        if self._checkpointer is not None and not self._monitor.stopped:
            self._write_at_end(self._checkpointer)
        return center

    def _write_before_error(self, error: BaseException) -> None:
        """Write a last checkpoint of a run that ends early, while its workers are still there."""
        self._ends_early = True
        begun = bool(self._history.records)
        hopeless = self.lost_server or isinstance(error, FencedError)
        if self._checkpointer is None or not begun or hopeless:
            return
        try:
            # An interrupt may have come in the middle of a conversation, or of an epoch's end.
            self._server.reconnect()
            if self._ending is not None:
                self._end_epoch(self._ending)
            if not self._monitor.stopped:
                self._write_last(self._checkpointer, at_once=False)
        except GridError as second:
            error.add_note(f"No last checkpoint could be written: {second}")

    def _write_at_end(self, checkpointer: Checkpointer) -> None:
        """Write the last checkpoint of a complete run; its model is worth more than this."""
        try:
            self._write_last(checkpointer, at_once=True)
        except (ClusterError, StorageError) as error:
            checkpointer.give_up(str(error))

    def _write_last(self, checkpointer: Checkpointer, *, at_once: bool) -> None:
        """Write a checkpoint; unless `at_once`, wait for the present states of the workers."""
        checkpointer.finish()
        before, until = checkpointer.captured, time.monotonic() + LAST_SECONDS
        self._server.begin_checkpoint(at_once=at_once)
        while checkpointer.captured == before:
            late = time.monotonic() - until
            if late > LAST_SECONDS:
                raise ClusterError("its state was not complete in time.")
            if late > 0 and not at_once:
                self._server.begin_checkpoint(at_once=True)
                at_once = True
            self._poll()
            time.sleep(POLL_SECONDS / 10)
        checkpointer.finish()

    def _advance(self) -> None:
        """Process the server's new events, and carry out the actions of the monitor."""
        ended, failed = self._jobs.done, self._jobs.failed
        update = self._poll(self._wait_seconds)
        self._show(update)
        # No worker can come before the rows are dealt, so their time has not begun.
        if not self._finished and not self._jobs.dealing:
            again = [self._retry(seat) for seat in failed if self._is_needed(seat)]
            self._ended = ended = ended and not any(again)
            self._losses.look(self._jobs.reason_of_loss, time.monotonic())
            looked = StatusUpdate(
                update.seats,
                update.version,
                update.samples_folded,
                self._history.samples,
                ended,
                self._history.samples_skipped,
                self._final_errors,
            )
            self._pass_to_monitor(looked)
            self._note_final_errors()

    def _is_needed(self, number: int) -> bool:
        """Whether a worker has work left, and was not given up."""
        # One that has finished was lost too late to matter.
        return self._seats[number].status != "finished" and number not in self._final_errors

    def _retry(self, number: int) -> bool:
        """Submit the job of a seat again, or give it up; return whether it was submitted."""
        seat = self._seats[number]
        reason = self._jobs.error(number) or ClusterError(f"The job of worker {number} failed.")
        why = "" if self._losses.explain(number, str(reason)) else f": {reason}"
        if self._retries.allows(number, seat.samples_folded, self._jobs.failures_of_a_job):
            self._progress.note(f"The job of worker {number} is submitted again{why}")
            self._jobs.again(number)
            return True
        self._final_errors[number] = reason
        self._unreported.append(number)
        kind = type(reason).__name__
        record = WorkerRecord(
            number, seat.attempt, "given up", seat.rows, error=kind, message=str(reason)
        )
        self._history.add(record)
        return False

    def _note_loss(self, record: WorkerRecord, explained: WorkerRecord) -> None:
        """Name a lost worker, and add the reason to its record."""
        workers = self._history.workers
        workers[workers.index(record)] = explained
        self._progress.note(loss_line(explained, self._seats[record.worker].commits))

    def _note_final_errors(self) -> None:
        """Name workers that were given up in a run that goes on."""
        while self._unreported:
            number = self._unreported.pop(0)
            self._progress.note(
                f"Worker {number} is given up, and the run goes on without it: it failed each time "
                f"and trained nothing. {self._final_errors[number]}"
            )

    def _poll(self, wait_seconds: float = 0.0) -> CenterUpdate:
        """Process all events so far; return the last one, with the state of the run.

        Without news, the server answers after `wait_seconds` seconds.
        """
        while True:
            captured = self._checkpointer.captured if self._checkpointer else 0
            update = self._server.poll(captured=captured, wait_seconds=wait_seconds)
            self._seats = update.seats
            self._events.extend(update.events)
            while self._events:
                self._record(self._events.popleft())
            if self._checkpointer is not None:
                self._checkpointer.look(self._server, update, writes=not self._monitor.stopped)
            # The server holds back events after a checkpoint; they follow the events before it.
            if len(update.events) < EVENTS_PER_UPDATE and not update.captured:
                return update
            wait_seconds = 0.0

    def _record(self, event: Event) -> None:
        if self._monitor.stopped and not isinstance(event, WorkerRecord):
            # Events after the epoch in which a callback ended the training are not in the model.
            return
        if isinstance(event, EpochEnded):
            self._end_epoch(event)
            return
        self._history.add(event)
        if isinstance(event, SkippedRecord):
            self._note_skip(event)
        if isinstance(event, WorkerRecord):
            if event.window_seconds:
                self._pass_to_monitor(WindowTime(event.worker, event.window_seconds))
            self._losses.take(event, time.monotonic())
            if event.status == "failed" and not (self._monitor.stopped or self._ends_early):
                # Workers report only errors that would occur again in another attempt.
                worker = self._monitor.describe(self._seats[event.worker], time.monotonic())
                raise failure_of(event, worker)

    def _note_skip(self, event: SkippedRecord) -> None:
        """Name the worker of a skipped window; of many windows more and more rarely."""
        self._skips[event.worker] += 1
        count = self._skips[event.worker]
        if count & (count - 1) == 0:
            self._progress.note(skip_line(event, count))

    def _end_epoch(self, event: EpochEnded) -> None:
        if self._ends_early:
            if event.epoch > len(self._history.epoch_records):
                self._observer.record(event)
            return
        self._ending = event
        snapshot = event.epoch * self._spec.snapshots_per_epoch
        center = self._server.center(snapshot) if snapshot else None
        if center is not None:
            self._progress.update(busy_with=f"evaluating epoch {event.epoch}")
        record, steering = self._observer(event, center)
        self._progress.update(busy_with="")
        self._progress.note(epoch_line(record, self._spec.epochs))
        changed = steering.stop or steering.learning_rate is not None
        if changed or self._spec.schedule.epoch_barrier:
            self._server.command(
                stop=steering.stop, learning_rate=steering.learning_rate, epochs=event.epoch
            )
        if steering.stop:
            self._pass_to_monitor(CallbackStop())
        self._ending = None

    def _pass_to_monitor(self, event: MonitorEvent) -> None:
        """Let the monitor handle an event, and carry out its actions."""
        for action in self._monitor.handle(event, time.monotonic()):
            if isinstance(action, FinishRun):
                self._finished = True
            elif isinstance(action, Restart):
                self._progress.note(
                    f"Worker {action.worker} has made no progress for {action.seconds:.0f} s, and "
                    f"its task is started again: {action.details}"
                )
                self._jobs.restart(action.attempt)
            elif isinstance(action, StartRun):
                self._progress.note(
                    f"The training begins without {len(action.without)} of {self._spec.workers} "
                    f"workers; whoever comes later is taken: {action.details}"
                )
                self._server.command(begin=True)
            else:
                # Spark's own error is more precise, so it is raised first.
                ended = self._ended and not self._final_errors
                self._error = (self._jobs.error() if ended else None) or action.error
                raise self._error

    def _show(self, update: CenterUpdate) -> None:
        recent = self._history.records[-4 * self._spec.workers :]
        working = sum(seat.status in WORKING for seat in update.seats)
        if not recent:
            self._progress.update(phase=self._phase_of_start(update), active=working)
            return
        passed = update.samples_folded - self._spec.schedule.repeated
        losses = [(record.samples, record.loss) for record in recent if record.loss is not None]
        rows = sum(samples for samples, _ in losses)
        self._progress.update(
            phase=TRAINING,
            epoch=min(self._spec.epochs, 1 + passed // self._spec.rows),
            samples=update.samples_folded,
            active=working,
            loss=sum(samples * loss for samples, loss in losses) / rows if rows else None,
            staleness=sum(record.staleness for record in recent) / len(recent),
        )

    def _phase_of_start(self, update: CenterUpdate) -> str:
        """Return what the workers do, or wait for, before the first commit."""
        if any(seat.status != "absent" for seat in update.seats):
            return "getting ready"
        return "dealing the rows" if self._jobs.dealing else "waiting for the workers"

    def _finish_job(self) -> list[dict[str, Any]]:
        """Return the summaries of workers whose jobs ended well; the center needs none of them."""
        problem: str | None = f"it did not end in {FINISH_SECONDS:.0f} s"
        if self._monitor.stopped:
            if not self._wait_for_workers():
                problem = f"its windows take more than {SHORT_WINDOW:.0f} s"
        elif not self._jobs.done:
            self._jobs.wait(FINISH_SECONDS)
        if self._jobs.done:
            error = self._jobs.error()
            problem = None if error is None else str(error)
        if problem is not None:
            self._progress.note(ending_note(self._spec, problem, stopped=self._monitor.stopped))
        return [row.asDict() for row in self._jobs.rows()]

    def _wait_for_workers(self) -> bool:
        """Wait for workers that were told to stop; return whether all of them have ended."""
        recent = self._history.records[-4 * self._spec.workers :]
        if max((record.seconds for record in recent), default=0.0) > SHORT_WINDOW:
            return False
        deadline = time.monotonic() + FINISH_SECONDS
        while not self._jobs.wait(POLL_SECONDS) and time.monotonic() < deadline:
            self._poll()
        # They tell the server before their job ends.
        self._poll()
        return True


def ending_note(spec: RunSpec, problem: str, *, stopped: bool = False) -> str:
    """Return a note for a run whose jobs have not ended with the training."""
    needed = spec.quorum_of(spec.workers)
    if stopped:
        return f"A callback has ended the training; the workers' job is cancelled: {problem}"
    if needed < spec.workers:
        return (
            f"Training is complete with a quorum of {needed} of {spec.workers} workers. Late "
            f"workers were stopped: {problem}"
        )
    return f"Training is complete, but the workers' job did not end well: {problem}"


def failure_of(event: WorkerRecord, worker: str) -> GridError:
    """Build the exception that the record of a failed worker names.

    Examples
    --------
    >>> failed = WorkerRecord(0, 7, "failed", error="NonFiniteLossError", message="NaN")
    >>> failure_of(failed, "worker 0 on node-3")
    NonFiniteLossError('NaN. Reported by worker 0 on node-3.')
    >>> failed = WorkerRecord(1, 8, "failed", error="MemoryError", message="no memory")
    >>> failure_of(failed, "worker 1 on node-2")
    WorkerFailedError('MemoryError: no memory. Reported by worker 1 on node-2.')
    """
    message = f"{event.message.removesuffix('.')}. Reported by {worker}."
    return error_named(event.error, message, GridError) or WorkerFailedError(
        f"{event.error}: {message}"
    )


def skip_line(record: SkippedRecord, count: int) -> str:
    """Return the line that names a worker whose window was skipped, with its skips so far."""
    host = f" on {record.host}" if record.host else ""
    so_far = f" ({count} so far)" if count > 1 else ""
    return (
        f"Worker {record.worker}{host}: window {record.window} of its pass {record.epoch} was "
        f"not folded{so_far}: {record.reason}"
    )


def epoch_line(record: EpochRecord, epochs: int) -> str:
    """Return the line that stays on the screen when an epoch has ended."""
    logs = ", ".join(f"{name} {value:.4g}" for name, value in record.logs().items())
    return f"epoch {record.epoch}/{epochs} ended after {record.seconds:.1f} s: {logs}"

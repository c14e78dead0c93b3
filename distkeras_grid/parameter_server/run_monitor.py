"""The driver's decisions in a run: deadlines and endings, without clock, thread or socket.

`RunMonitor` receives events about the server and the workers' jobs, with their time. It returns
what to do: start the task of a silent worker again, end the run, or end it with an error.
`distkeras_grid.trainers.run.Run` observes and acts in a real run, and
`distkeras_grid.simulation.run.Simulation` in a simulated one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec

from distkeras_grid.errors import (
    ClusterError,
    GridError,
    StartTimeoutError,
    TrainingError,
    WorkerFailedError,
    error_named,
)
from distkeras_grid.parameter_server.messages import SeatStatus
from distkeras_grid.parameter_server.retry_policy import MOST_FAILURES, RetryPolicy
from distkeras_grid.parameter_server.timeouts import (
    SILENT_WINDOWS,
    TimeoutKind,
    WorkerPhase,
    state_of,
)
from distkeras_grid.rules import SynchronousRule, rule_of
from distkeras_grid.spec import RunSpec

# States of a seat that has no worker.
MISSING = ("absent", "lost")

# States of a worker that makes progress, or may soon.
AT_WORK = ("joined", "ready", "running")

# States of a worker from which nothing more is expected.
DONE = ("finished", "failed")


class StatusUpdate(msgspec.Struct, frozen=True):
    """The server's state was read, and all events up to it were recorded."""

    workers: tuple[SeatStatus, ...]  # Status of every worker on the server
    version: int  # Number of folds so far
    # folded and recorded: Number of rows that the server has folded, and of those in the history
    folded: int
    recorded: int
    job_ended: bool = False  # Whether Spark's job had ended before the server was asked
    skipped: int = 0  # Number of rows of windows that were not folded because of what was in them
    # Workers whose jobs are not submitted any more, and why
    final_errors: Mapping[int, GridError] = {}


class WindowTime(msgspec.Struct, frozen=True):
    """A worker has measured how long one of its windows takes."""

    worker: int  # Number of the worker
    seconds: float  # Time of the window [s]


class CallbackStop(msgspec.Struct, frozen=True):
    """A callback has ended the training."""


class FinishRun(msgspec.Struct, frozen=True):
    """Training is complete: fetch the center, and end the job."""


class Restart(msgspec.Struct, frozen=True):
    """Have Spark start a worker's task again."""

    worker: int  # worker and attempt: The worker, and the attempt to kill
    attempt: int
    seconds: float  # How long it has made no progress [s]
    details: str = ""  # What is known about it, in words


class StartRun(msgspec.Struct, frozen=True):
    """Let the workers that are ready start, without the missing ones."""

    without: tuple[int, ...]  # The missing workers. They may join later.
    details: str = ""  # What is known about them, in words


class FailRun(msgspec.Struct, frozen=True):
    """End the run with an error."""

    # The error. If a job has ended with its own error, that one is raised instead.
    error: GridError


MonitorEvent: TypeAlias = StatusUpdate | WindowTime | CallbackStop
MonitorAction: TypeAlias = FinishRun | Restart | StartRun | FailRun


@dataclass(slots=True)
class _Clock:
    """A seat's last status, and when its worker last made progress and gave a sign of life."""

    seat: SeatStatus
    since: float
    heard: float

    def update(self, seat: SeatStatus, now: float) -> None:
        if _place(seat) != _place(self.seat):
            self.since = self.heard = now
        elif seat.heartbeats != self.seat.heartbeats:
            self.heard = now
        self.seat = seat

    def restart(self, now: float) -> None:
        """Count from now: the task is started again."""
        self.since = self.heard = now

    @property
    def state(self) -> WorkerPhase | None:
        return state_of(self.seat.status, self.seat.activity)

    def describe(self, now: float) -> str:
        """Return what is known about the worker, in words."""
        seat, state = self.seat, self.state
        host = f" on {seat.host}" if seat.host else ""
        name = seat.status if state is None else state.name
        parts = [f"{name} for {now - self.since:.0f} s"]
        if seat.tries:
            parts.append(f"try {seat.tries}")
        if seat.attempt >= 0:
            parts.append(f"Spark task {seat.attempt}")
        if seat.heartbeats:
            parts.append(f"last sign of life {now - self.heard:.0f} s ago")
        if seat.log:
            parts.append(f"log {seat.log}")
        return f"worker {seat.worker}{host} ({', '.join(parts)})"


def _place(seat: SeatStatus) -> tuple[object, ...]:
    """Return what changes when a worker makes progress."""
    return (
        *(seat.attempt, seat.status, seat.rows, seat.samples_folded),
        *(seat.activity, seat.done, seat.commits),
    )


class RunMonitor:
    """Deadlines and endings of one run; `timeouts.STATES` says how long each state may last.

    A run in which workers wait for each other in rounds needs a quorum. Another one goes on as long
    as one worker does.

    Examples
    --------
    >>> from distkeras_grid.spec import AlgorithmSpec, LayoutSpec, RuleSpec, ScheduleSpec
    >>> spec = RunSpec(
    ...     algorithm=AlgorithmSpec(rule=RuleSpec(name="downpour")),
    ...     layout=LayoutSpec(trainable_size=1),
    ...     schedule=ScheduleSpec(rows=10),
    ... )
    >>> monitor = RunMonitor(spec)
    >>> running = SeatStatus(0, 7, "running", 10, 5)
    >>> monitor.handle(StatusUpdate((running,), 1, 5, 5), now=0.0)
    []
    >>> monitor.handle(StatusUpdate((running,), 1, 5, 5), now=601.0)[0].attempt
    7
    >>> finished = SeatStatus(0, 8, "finished", 10, 10)
    >>> monitor.handle(StatusUpdate((finished,), 2, 10, 10), now=602.0)
    [FinishRun()]
    """

    def __init__(self, spec: RunSpec, *, since: int = 0) -> None:
        self._spec = spec
        self._synchronous = isinstance(rule_of(spec.rule), SynchronousRule)
        self._since = since
        self.stopped = False
        # Whether workers with rows were allowed to start.
        self._begun = False
        self._window_seconds: dict[int, float] = {}
        self._clocks: dict[int, _Clock] = {}
        self._looked_at = -math.inf
        # The time since which no worker is active.
        self._idle_since: float | None = None
        # A killed task does not count as a failed one, so Spark would restart a hanging worker for
        # ever. Its progress are its commits.
        self._retries = RetryPolicy()
        # Rows folded so far, and rows that had been skipped when these became more.
        self._folded = self._skipped_before = 0

    @property
    def needed(self) -> int:
        """How many workers must finish; the remaining windows of the others are dropped."""
        return self._spec.quorum_of(self._spec.workers)

    def handle(self, event: MonitorEvent, now: float) -> list[MonitorAction]:
        """Process an event; return what to do.

        `now`: its time, on a clock that never goes back [s].
        """
        if isinstance(event, WindowTime):
            self._window_seconds[event.worker] = event.seconds
            return []
        if isinstance(event, CallbackStop):
            self.stopped = True
            return [FinishRun()]
        return self._on_update(event, now)

    @property
    def deadline(self) -> float:
        """When the next deadline ends if nothing changes before; infinity if there is none [s].

        Look after that moment: at the moment itself, the deadline still holds.
        """
        times = (self._due(clock) for clock in self._clocks.values())
        # What was due before the last look is already done.
        return min((at for at in times if at >= self._looked_at), default=math.inf)

    def describe(self, seat: SeatStatus, now: float) -> str:
        """Return what is known about a worker, in words: host, state, last sign of life and log.

        `now`: the time, on the clock of `handle` [s].
        """
        clock = self._clocks.get(seat.worker) or _Clock(seat, now, now)
        newest = msgspec.structs.replace(clock.seat, host=seat.host, log=seat.log)
        return replace(clock, seat=newest).describe(now)

    def _on_update(self, event: StatusUpdate, now: float) -> list[MonitorAction]:
        self._record(event, now)
        if event.skipped - self._skipped_before >= self._spec.rows:
            return [FailRun(self._nothing_folded(event))]
        finished = sum(worker.status == "finished" for worker in event.workers)
        if finished >= self.needed:
            wrong = self._wrong_count(event)
            return [FailRun(wrong) if wrong else FinishRun()]
        final_errors = event.final_errors
        left = [w for w in event.workers if w.status not in DONE and w.worker not in final_errors]
        if final_errors and (event.job_ended or not self._enough(left, finished)):
            return [FailRun(self._error_of(final_errors, final_errors, now))]
        if event.job_ended:
            states = ", ".join(f"{worker.worker}: {worker.status}" for worker in event.workers)
            return [
                FailRun(
                    ClusterError(f"Spark's job ended before the workers had finished ({states}).")
                )
            ]
        clocks = [self._clocks[number] for number in self._clocks if number not in final_errors]
        overdue = [clock for clock in clocks if now > self._due(clock)]
        restarts = self._restarts(overdue, now)
        if not (overdue or final_errors):
            return []
        out = {clock.seat.worker for clock in overdue if clock.seat.status in MISSING}
        out |= self._hopeless | set(final_errors)
        able = [worker for worker in left if worker.worker not in out]
        if overdue and not self._enough(able, finished):
            if final_errors:
                return [FailRun(self._error_of(final_errors, out, now))]
            return [FailRun(self._error(out, now, begun=self._begun))]
        begin = self._begin(able, out, now) if self._enough(able, finished) else []
        for restart in restarts:
            self._clocks[restart.worker].restart(now)
        return [*restarts, *begin]

    @property
    def _hopeless(self) -> set[int]:
        """Workers that were restarted too often without a commit."""
        seats = (clock.seat for clock in self._clocks.values())
        return {
            seat.worker
            for seat in seats
            if seat.status not in DONE and self._retries.exhausted(seat.worker, seat.commits)
        }

    def _enough(self, able: list[SeatStatus], finished: int) -> bool:
        """Whether a run can go on with these workers and those that have finished."""
        if self._synchronous:
            return finished + len(able) >= self.needed
        return bool(able)

    def _record(self, event: StatusUpdate, now: float) -> None:
        """Record which workers have made progress, and which live, since the last look."""
        self._looked_at = now
        if event.folded != self._folded:
            self._folded, self._skipped_before = event.folded, event.skipped
        running = any(w.status == "running" and w.rows for w in event.workers)
        self._begun = self._begun or running or event.version > self._since
        for seat in event.workers:
            clock = self._clocks.setdefault(seat.worker, _Clock(seat, now, now))
            clock.update(seat, now)
        active_seats = (w for w in event.workers if w.status in AT_WORK)
        out = {*self._hopeless, *event.final_errors}
        if any(worker.worker not in out for worker in active_seats):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    def _nothing_folded(self, event: StatusUpdate) -> TrainingError:
        return TrainingError(
            f"No window of the last {event.skipped - self._skipped_before} rows could be folded, "
            "and an epoch is not more: history.skipped says what was seen. Lower the learning "
            "rate, check the data, or give Outliers a larger factor."
        )

    def _wrong_count(self, event: StatusUpdate) -> TrainingError | None:
        expected = self._spec.schedule.samples
        whole = self.needed == self._spec.workers
        complete = not whole or event.recorded + event.skipped == expected
        if event.recorded == event.folded and complete:
            return None
        return TrainingError(
            f"The server folded {event.folded} samples, and the history has {event.recorded} of "
            f"them and {event.skipped} that were skipped, but {self._spec.epochs} epochs of "
            f"{self._spec.rows} rows, with {self._spec.schedule.repeated} that are trained again, "
            f"are {expected}."
        )

    def _due(self, clock: _Clock) -> float:
        """Return the moment after which a state has lasted too long."""
        state, limits = clock.state, self._spec.limits
        if state is None or state.limit is TimeoutKind.OTHERS:
            return math.inf
        if state.limit is TimeoutKind.START:
            return clock.since + limits.start_timeout
        if state.limit is TimeoutKind.WINDOW:
            window = self._window_seconds.get(clock.seat.worker, 0.0)
            busy = clock.since + max(self._spec.round_timeout, SILENT_WINDOWS * window)
            silent = clock.heard + self._spec.round_timeout if clock.seat.heartbeats else math.inf
            return min(busy, silent)
        if not self._begun or self._synchronous:
            return clock.since + limits.start_timeout
        # No worker waits for it. When others have finished, Spark may start it in their slots.
        if self._idle_since is None:
            return math.inf
        return max(clock.since, self._idle_since) + limits.start_timeout

    def _restarts(self, overdue: list[_Clock], now: float) -> list[Restart]:
        """Restart workers that make no progress, even if no restart has helped so far."""
        actions = []
        for clock in overdue:
            seat, state = clock.seat, clock.state
            if state is None or state.limit not in (TimeoutKind.START, TimeoutKind.WINDOW):
                continue
            self._retries.allows(seat.worker, seat.commits)
            actions.append(
                Restart(seat.worker, seat.attempt, now - clock.since, clock.describe(now))
            )
        return actions

    def _begin(self, able: list[SeatStatus], out: set[int], now: float) -> list[MonitorAction]:
        """Let waiting workers start, once no other worker is about to become ready."""
        if self._begun or any(worker.status != "ready" for worker in able):
            return []
        self._begun = True
        return [StartRun(tuple(sorted(out)), self._describe(out, now))]

    def _describe(self, workers: Iterable[int], now: float) -> str:
        return "; ".join(self._clocks[worker].describe(now) for worker in sorted(workers))

    def _error_of(
        self, final_errors: Mapping[int, GridError], out: Iterable[int], now: float
    ) -> GridError:
        """Return the error of the first worker that was given up, and what is known of all."""
        worker, error = next(iter(final_errors.items()))
        message = (
            f"{str(error).removesuffix('.')}. Worker {worker} was given up for that, because it "
            f"failed each time and trained nothing. The run cannot go on without: "
            f"{self._describe(out, now)}."
        )
        return error_named(type(error).__name__, message, GridError) or ClusterError(message)

    def _error(self, out: set[int], now: float, *, begun: bool) -> GridError:
        """Return the error of a run that cannot go on without these workers."""
        workers, allowed = self._describe(out, now), self._spec.limits.start_timeout
        if hung := sorted(self._hopeless & out):
            names = ", ".join(map(str, hung))
            return WorkerFailedError(
                f"Worker {names} hangs: its task was started again {MOST_FAILURES - 1} times, and "
                f"has committed nothing since. The run cannot go on without: {workers}. Look in "
                "the log and at the threads of its process for what it waits for."
            )
        if begun:
            return StartTimeoutError(
                "These workers were lost or never came, and Spark did not start them in "
                f"{allowed:.0f} s, and nobody else has work left: {workers}. Their rows are not "
                "trained. Look in the executors' logs for the reason, give Spark slots for all "
                "workers, or raise start_timeout if executors need more time to start."
            )
        wanted = self._spec.workers
        return StartTimeoutError(
            f"Only {wanted - len(out)} of {wanted} workers started in {allowed:.0f} s, not "
            f"{workers}. Each needs a task slot of its own for the whole run: give Spark {wanted} "
            "slots (spark.executor.instances x spark.executor.cores / spark.task.cpus, or "
            "local[N,4]), lower num_workers, or raise start_timeout if executors need more time "
            "to start."
        )

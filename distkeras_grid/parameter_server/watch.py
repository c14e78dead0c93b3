"""The driver's mind of a run: its deadlines and its endings, without clock, thread or socket.

`RunWatch` receives events about the server and the workers' job, with their time. It returns what
to do: start the task of a silent worker again, end the run, or end it with an error.
`distkeras_grid.trainers.run.Run` observes and acts in a real run, and
`distkeras_grid.simulation.run.Simulation` in a simulated one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self, TypeAlias

import msgspec

from distkeras_grid.errors import (
    ClusterError,
    GridError,
    StartTimeoutError,
    TrainingError,
    WorkerFailedError,
)
from distkeras_grid.parameter_server.messages import SeatStatus
from distkeras_grid.spec import RunSpec

# States of a seat that waits for its first worker, or for another one.
MISSING = ("absent", "lost")

# States of a worker that makes progress, or may soon.
AT_WORK = ("joined", "ready", "running")

# A worker with long windows is silent only after this many of them.
SILENT_WINDOWS = 20

# A killed task does not count as a failed one, so Spark would start a worker that hangs again and
# again. Spark itself gives up after four failures (spark.task.maxFailures).
MOST_RESTARTS = 3


class Looked(msgspec.Struct, frozen=True):
    """The server's state was read, and all events up to it were recorded.

    Parameters
    ----------
    workers : tuple of SeatStatus
        Every worker as the server sees it.
    version : int
        Folds so far.
    folded, recorded : int
        Rows that the server has folded, and those in the history.
    job_ended : bool
        Whether Spark's job had ended before the server was asked.
    """

    workers: tuple[SeatStatus, ...]
    version: int
    folded: int
    recorded: int
    job_ended: bool = False


class WindowMeasured(msgspec.Struct, frozen=True):
    """A worker has measured how long a window of its own takes.

    Parameters
    ----------
    worker : int
        Number of the worker.
    seconds : float
        Time of the window [s].
    """

    worker: int
    seconds: float


class Stopped(msgspec.Struct, frozen=True):
    """A callback has ended the training."""


class Finish(msgspec.Struct, frozen=True):
    """Training is complete: fetch the center, and end the job."""


class Restart(msgspec.Struct, frozen=True):
    """Have Spark start a worker's task again.

    Parameters
    ----------
    worker, attempt : int
        The worker, and the attempt to kill.
    seconds : float
        How long it has sent nothing [s].
    """

    worker: int
    attempt: int
    seconds: float


class AllMeasured(msgspec.Struct, frozen=True):
    """Every worker has measured its window.

    Parameters
    ----------
    seconds : float
        The mean.
    """

    seconds: float


class Fail(msgspec.Struct, frozen=True):
    """End the run with an error.

    Parameters
    ----------
    error : GridError
        The error. If the job has ended with an error of its own, that one is raised instead.
    """

    error: GridError


WatchEvent: TypeAlias = Looked | WindowMeasured | Stopped
WatchAction: TypeAlias = Finish | Restart | AllMeasured | Fail


class RunWatch:
    """Deadlines and endings of one run.

    Parameters
    ----------
    spec : RunSpec
        The run.
    synchronous : bool, default False
        Whether workers wait for each other in rounds. The server then gives up a round that stays
        incomplete, but only from its first commit on.
    since : int, default 0
        Version of the center with which this execution of the run begins.

    Attributes
    ----------
    stopped : bool
        Whether a callback has ended the training.

    Examples
    --------
    >>> from distkeras_grid.spec import AlgorithmSpec, LayoutSpec, RuleSpec, ScheduleSpec
    >>> spec = RunSpec(
    ...     algorithm=AlgorithmSpec(rule=RuleSpec(name="downpour")),
    ...     layout=LayoutSpec(trainable_size=1),
    ...     schedule=ScheduleSpec(rows=10),
    ... )
    >>> watch = RunWatch(spec)
    >>> running = SeatStatus(0, 7, "running", 10, 5)
    >>> watch.handle(Looked((running,), 1, 5, 5), now=0.0)
    []
    >>> watch.handle(Looked((running,), 1, 5, 5), now=601.0)
    [Restart(worker=0, attempt=7, seconds=601.0)]
    >>> finished = SeatStatus(0, 8, "finished", 10, 10)
    >>> watch.handle(Looked((finished,), 2, 10, 10), now=602.0)
    [Finish()]
    """

    def __init__(self, spec: RunSpec, *, synchronous: bool = False, since: int = 0) -> None:
        self._spec = spec
        self._synchronous = synchronous
        self._since = since
        self.stopped = False
        self._missing_since: float | None = None
        # Of the center, when the server was last looked at.
        self._version = since
        # Whether a worker with rows has been let start. Nobody is before all are ready.
        self._begun = False
        self._window_seconds: dict[int, float] = {}
        # For each worker: its last status on the server, and since when nothing has changed.
        self._heard: dict[int, tuple[SeatStatus, float]] = {}
        # For each worker that was started again: its rows at that time, and how often since.
        self._restarted: dict[int, tuple[int, int]] = {}

    @property
    def needed(self) -> int:
        """How many workers must finish; the windows of the others are then dropped."""
        return self._spec.quorum_of(self._spec.workers)

    def handle(self, event: WatchEvent, now: float) -> list[WatchAction]:
        """Process an event; return what to do.

        Parameters
        ----------
        event : Looked, WindowMeasured or Stopped
            The event.
        now : float
            Its time, on a clock that never goes back [s].
        """
        if isinstance(event, WindowMeasured):
            return self._measured(event)
        if isinstance(event, Stopped):
            self.stopped = True
            return [Finish()]
        return self._looked(event, now)

    @property
    def deadline(self) -> float:
        """When something becomes due if nothing changes before; infinity while nothing does.

        A look is to come later than that: a deadline that is just reached is kept.
        """
        times = [math.inf]
        if self._missing_since is not None:
            times.append(self._missing_since + self._spec.limits.start_timeout)
        for worker, since in self._heard.values():
            allowed = self._allowed_silence(worker)
            times.append(math.inf if allowed is None else since + allowed)
        return min(times)

    def to_state(self) -> dict[str, Any]:
        """Return the whole state as JSON values. Times are those of the given clock."""
        heard = [[msgspec.to_builtins(seat), since] for seat, since in self._heard.values()]
        return {
            "stopped": self.stopped,
            "missing_since": self._missing_since,
            "version": self._version,
            "begun": self._begun,
            "window_seconds": [list(item) for item in self._window_seconds.items()],
            "heard": heard,
            "restarted": [[worker, *told] for worker, told in self._restarted.items()],
        }

    @classmethod
    def from_state(
        cls, spec: RunSpec, state: Mapping[str, Any], *, synchronous: bool = False
    ) -> Self:
        """Build a watch from what `to_state` returned."""
        watch = cls(spec, synchronous=synchronous)
        watch.stopped = state["stopped"]
        watch._missing_since, watch._version = state["missing_since"], state["version"]
        watch._begun = state["begun"]
        watch._window_seconds = {worker: seconds for worker, seconds in state["window_seconds"]}
        heard = [(SeatStatus(**seat), since) for seat, since in state["heard"]]
        watch._heard = {seat.worker: (seat, since) for seat, since in heard}
        watch._restarted = {worker: (rows, count) for worker, rows, count in state["restarted"]}
        return watch

    def _measured(self, event: WindowMeasured) -> list[WatchAction]:
        complete = len(self._window_seconds) == self._spec.workers
        if event.seconds <= 0:
            # A worker without rows.
            return []
        self._window_seconds[event.worker] = event.seconds
        if complete or len(self._window_seconds) < self._spec.workers:
            return []
        return [AllMeasured(sum(self._window_seconds.values()) / self._spec.workers)]

    def _looked(self, event: Looked, now: float) -> list[WatchAction]:
        folded = event.version != self._version
        self._version = event.version
        if self._has_folded(event) or any(w.status == "running" and w.rows for w in event.workers):
            self._begun = True
        finished = sum(worker.status == "finished" for worker in event.workers)
        if finished >= self.needed:
            wrong = self._wrong_count(event)
            return [Fail(wrong) if wrong else Finish()]
        if event.job_ended:
            states = ", ".join(f"{worker.worker}: {worker.status}" for worker in event.workers)
            return [
                Fail(ClusterError(f"Spark's job ended before the workers had finished ({states})."))
            ]
        missing = self._missing_too_long(event, now)
        return [Fail(missing)] if missing else self._silent(event, folded, now)

    def _wrong_count(self, event: Looked) -> TrainingError | None:
        expected = self._spec.epochs * self._spec.rows
        whole = self.needed == self._spec.workers
        if event.recorded == event.folded and (not whole or event.recorded == expected):
            return None
        return TrainingError(
            f"The server folded {event.folded} samples and the history has {event.recorded}, but "
            f"{self._spec.epochs} epochs of {self._spec.rows} rows are {expected}."
        )

    def _missing_too_long(self, event: Looked, now: float) -> StartTimeoutError | None:
        """Refuse to wait longer than allowed for workers that are not there."""
        missing = [worker for worker in event.workers if worker.status in MISSING]
        if self._may_be_missing(event, len(missing)):
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since > self._spec.limits.start_timeout:
            return self._start_error(missing, begun=self._has_folded(event))
        return None

    def _has_folded(self, event: Looked) -> bool:
        """Whether a commit has come in this execution of the run."""
        return event.version > self._since

    def _may_be_missing(self, event: Looked, missing: int) -> bool:
        """Whether a run may continue for now without this number of workers."""
        if not self._has_folded(event):
            return missing == 0
        if self._synchronous:
            return missing <= self._spec.workers - self.needed
        # Asynchronous workers do not wait for each other. A lost one may come back as long as
        # another one makes progress, and then trains its own rows.
        return missing == 0 or any(worker.status in AT_WORK for worker in event.workers)

    def _start_error(self, missing: list[SeatStatus], *, begun: bool) -> StartTimeoutError:
        wanted, allowed = self._spec.workers, self._spec.limits.start_timeout
        names = ", ".join(f"{worker.worker} ({worker.status})" for worker in missing)
        if begun:
            return StartTimeoutError(
                f"These workers were lost, and Spark did not start them again in {allowed:.0f} s: "
                f"{names}. Their rows are not trained. Look in the executors' logs for the reason, "
                "give Spark slots for all workers, or raise start_timeout if executors need more "
                "time to start."
            )
        return StartTimeoutError(
            f"Only {wanted - len(missing)} of {wanted} workers started in {allowed:.0f} s, not "
            f"{names}. Each needs a task slot of its own for the whole run: give Spark {wanted} "
            "slots (spark.executor.instances x spark.executor.cores / spark.task.cpus, or "
            "local[N,4]), lower num_workers, or raise start_timeout if executors need more time "
            "to start."
        )

    def _silent(self, event: Looked, folded: bool, now: float) -> list[WatchAction]:
        """Find workers that neither get on nor die; `folded`: the center has changed."""
        actions: list[WatchAction] = []
        for worker in event.workers:
            before, since = self._heard.get(worker.worker, (None, now))
            allowed = self._allowed_silence(worker)
            # A worker that is late for each round gets on, too, but none of its rows is folded.
            in_rounds = folded and self._synchronous and worker.status == "running"
            if worker != before or in_rounds or allowed is None:
                since = now
            elif now - since > allowed:
                actions.append(self._start_again(worker, now - since))
                since = now
            self._heard[worker.worker] = (worker, since)
        return actions

    def _start_again(self, worker: SeatStatus, seconds: float) -> Restart | Fail:
        """Start a silent worker again; give up one that no start has helped."""
        rows, count = self._restarted.get(worker.worker, (worker.samples_folded, 0))
        if worker.samples_folded > rows:
            count = 0
        if count == MOST_RESTARTS:
            return Fail(
                WorkerFailedError(
                    f"Worker {worker.worker} hangs: it was started again {count} times, and has "
                    f"sent nothing since (now {worker.status!r} for {seconds:.0f} s, attempt "
                    f"{worker.attempt}). Look in its executor's log and threads for what it "
                    "waits for."
                )
            )
        self._restarted[worker.worker] = (worker.samples_folded, count + 1)
        return Restart(worker.worker, worker.attempt, seconds)

    def _allowed_silence(self, worker: SeatStatus) -> float | None:
        """Return how long a worker may stay as it is [s]; None for as long as it likes."""
        if worker.status == "joined" and self._begun:
            # All have been ready once, so this is another attempt, and it may be stuck.
            return self._spec.limits.start_timeout
        if worker.status != "running":
            return None
        window = self._window_seconds.get(worker.worker, 0.0)
        silence = max(self._spec.round_timeout, SILENT_WINDOWS * window)
        # A worker that has opened a round waits in it until the server gives the round up.
        return silence + self._spec.round_timeout if self._synchronous else silence

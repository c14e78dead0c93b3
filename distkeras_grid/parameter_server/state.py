"""The state of a run on the server: seats, attempts, sequences, versions, epochs and events.

It is part of the server's core (`distkeras_grid.parameter_server.server_core`), without arithmetic
on weights, sockets, threads or clock. Times are arguments [s since 1970].
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from distkeras_grid.errors import FencedError, RefusedError
from distkeras_grid.parameter_server.checkpoint_state import SavedLedger
from distkeras_grid.parameter_server.events import EventLog
from distkeras_grid.parameter_server.frames import encoded_size
from distkeras_grid.parameter_server.messages import (
    EVENTS_PER_UPDATE,
    CenterUpdate,
    CommitReply,
    Heartbeat,
    ResumeReply,
    SeatStatus,
    Start,
    WindowCommit,
)
from distkeras_grid.parameter_server.metric_sums import MetricSums
from distkeras_grid.parameter_server.timeouts import Activity
from distkeras_grid.records import (
    EpochEnded,
    LateRecord,
    LocalRecord,
    SkippedRecord,
    WindowRecord,
    WorkerRecord,
)
from distkeras_grid.rules import CommitInfo, rule_of
from distkeras_grid.spec import RunSpec

_NUMBERS = (
    "version",
    "samples_folded",
    "samples_dropped",
    "stop",
    "learning_rate",
)
#: Of a seat, what lasts longer than an execution of the run.
_LASTING = ("rows", "digest", "next_sequence", "samples_folded", "samples_dropped", "tries")
#: Of a seat, what its worker tells with each sign of life.
_TOLD = ("doing", "done", "beats", "host", "log")
#: Most learning rates that a worker is told which trains windows again, the newest ones.
_MOST_RATES = 1000
#: In these states a seat does not delay the start.
_AT_THE_GATE = ("ready", "running", "finished")


@dataclass(frozen=True, slots=True)
class ConnectionId:
    """One connection's claim on a seat."""

    seat: int  # seat and attempt: The seat, and Spark's number of the task on it
    attempt: int
    number: int  # Counts the seat's connections. Only the newest one is valid.


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A commit that has arrived completely."""

    session: ConnectionId  # Session of the sender
    commit: WindowCommit
    bytes_up: int  # Bytes of its frame


@dataclass(slots=True)
class _Seat:
    status: str = "absent"
    attempt: int = -1
    session: int = 0
    rows: int | None = None
    digest: str = ""
    next_sequence: int = 0
    samples_folded: int = 0
    samples_dropped: int = 0
    #: Number of its last commit that was skipped; -1 for none.
    skipped: int = -1
    #: Newest attempt that has started; only this one may resume.
    started: int = -1
    #: How many attempts there have been.
    tries: int = 0
    # What its worker has told with its last sign of life, and the number of these.
    doing: Activity = ""
    done: int = 0
    beats: int = 0
    host: str = ""
    log: str = ""


def _window_of(arrival: PendingCommit) -> str:
    commit = arrival.commit
    return f"Worker {arrival.session.seat}, epoch {commit.epoch}, window {commit.window}"


class Ledger:
    """The state of one run."""

    def __init__(self, spec: RunSpec) -> None:
        self.now: float | None = None
        self.version = 0
        self.samples_folded = 0
        self.samples_dropped = 0
        self.stop = False
        self.learning_rate: float | None = None
        self.started = False
        #: Epochs after which the driver's callbacks have acted.
        self.epochs_acted = spec.schedule.epochs_before
        #: The rates that the driver has set, each with the epoch from which it counts.
        self.rates: list[tuple[int, float]] = []
        self.events = EventLog()
        self._spec = spec
        self._separate = rule_of(spec.rule).traits.own_center
        self._seats = [_Seat() for _ in range(spec.workers)]
        self._epochs_ended = 0
        self._ended = False
        self._metrics = MetricSums()
        # The seats as they were last told to the driver, and the moments at which they changed.
        self._told: dict[int, tuple[SeatStatus, int]] = {}

    # Seats

    def join(self, number: int, attempt: int) -> ConnectionId:
        """Give a seat to an attempt, and take it from an older one."""
        if number >= len(self._seats):
            raise RefusedError(
                f"The run has the workers 0 to {len(self._seats) - 1}. Received: worker {number}."
            )
        seat = self._seats[number]
        if attempt < seat.attempt:
            raise self.fenced(number, attempt)
        if attempt > seat.attempt and seat.status not in ("absent", "finished", "failed", "lost"):
            self._log_worker(number, "fenced")
        if attempt > seat.attempt:
            seat.tries += 1
            new = _Seat()
            for name in _TOLD:
                setattr(seat, name, getattr(new, name))
        seat.attempt = attempt
        seat.session += 1
        seat.status = "joined"
        self._log_worker(number, "joined")
        return ConnectionId(number, attempt, seat.session)

    def ready(
        self,
        session: ConnectionId,
        rows: int,
        window_seconds: float = 0.0,
        digest: str = "",
        road: str = "",
    ) -> None:
        """Record that a seat has its rows."""
        seat = self._current(session)
        if seat.rows not in (None, rows):
            raise RefusedError(
                f"An earlier attempt of worker {session.seat} had {seat.rows} rows. Received: "
                f"{rows} rows. The data must be the same each time they are read: write them to "
                "Parquet, and train on the Parquet files."
            )
        if digest and seat.digest not in ("", digest):
            raise RefusedError(
                f"An earlier attempt of worker {session.seat} had other rows, with the digest "
                f"{seat.digest!r}. Received: as many, with {digest!r}. The data must be the same "
                "each time they are read: write them to Parquet, and train on the Parquet files."
            )
        if rows > self._spec.largest_share():
            raise RefusedError(
                f"A worker of this run has {self._spec.largest_share()} rows at most. Received: "
                f"{rows} rows of worker {session.seat}. Let driver and workers read the same data."
            )
        seat.rows = rows
        total = sum(other.rows or 0 for other in self._seats)
        known = all(other.rows is not None for other in self._seats)
        if total > self._spec.rows or (known and total != self._spec.rows):
            seat.rows = None
            raise RefusedError(
                f"The run was announced with {self._spec.rows} rows. Received: {total} rows of "
                "its workers. Let driver and workers read the same data."
            )
        seat.status, seat.digest = "ready", digest or seat.digest
        self._log_worker(
            session.seat, "ready", window_seconds=window_seconds or None, road=road or None
        )
        self.started = self.started or self.present == len(self._seats)

    def hear(self, session: ConnectionId, beat: Heartbeat) -> None:
        """Record a sign of life."""
        seat = self._current(session)
        seat.doing, seat.done = beat.doing, beat.done
        seat.host, seat.log = beat.host, beat.log
        seat.beats += 1

    @property
    def present(self) -> int:
        """Seats that are ready."""
        return sum(seat.status in _AT_THE_GATE for seat in self._seats)

    def may_start(self, session: ConnectionId) -> bool:
        """Whether a ready seat may start. A seat without rows need not wait for the others."""
        return self.started or self.stop or self._seats[session.seat].rows == 0

    def start(self, session: ConnectionId) -> Start:
        """Let a seat start from the current center."""
        seat = self._current(session)
        seat.status = "running"
        seat.started = session.attempt
        return Start(
            next_sequence=seat.next_sequence,
            version=self.version,
            newest=self.version,
            has_state=False,
            learning_rate=self.learning_rate,
            stop=self.stop,
        )

    def go_on(self, session: ConnectionId, kept: int | None) -> None:
        """Report from where a seat goes on, if it has windows in the center.

        `kept`: windows behind the state that its worker receives; None if it begins with a new one.
        """
        seat = self._seats[session.seat]
        if seat.next_sequence:
            self._log_worker(
                session.seat, "continued", windows=seat.next_sequence, state_windows=kept
            )

    def next_sequence(self, number: int) -> int:
        """Return the number of the commit that is due from a seat."""
        return self._seats[number].next_sequence

    def resume(self, session: ConnectionId, road: str = "") -> ResumeReply:
        """Let a seat continue where it was, after a broken connection."""
        seat = self._current(session)
        if seat.started != session.attempt:
            raise RefusedError(
                f"Worker {session.seat} cannot resume: it was not told to start. "
                f"Received: Spark task {session.attempt}; started: Spark task {seat.started}."
            )
        seat.status = "running"
        self._log_worker(session.seat, "resumed", road=road or None)
        return ResumeReply()

    def finish(self, session: ConnectionId, now: float) -> range:
        """Record that a seat has no windows left; a quorum of such seats ends the run."""
        self._current(session).status = "finished"
        self._log_worker(session.seat, "finished")
        if self.stop or not self.over:
            return range(0)
        # The run does not wait for the remaining windows of late workers.
        self.stop = True
        before = self._count_of(self._spec.snapshots_per_epoch)
        self._ended = True
        return self._pass(before, now)

    def fail(self, session: ConnectionId, error: str, message: str) -> None:
        """Record that a worker gave up."""
        self._current(session).status = "failed"
        self.log_failure(session, error, message)

    def lose(self, session: ConnectionId) -> None:
        """Record that a connection broke, unless its seat has a newer one."""
        seat = self._seats[session.seat]
        if seat.session == session.number and seat.status not in ("finished", "failed"):
            seat.status = "lost"
            self._log_worker(session.seat, "lost")

    def needed(self, present: Iterable[int]) -> int:
        """Return how many commits complete a synchronous round.

        That is the quorum of those who could come, but no more than still have to finish: a seat
        that never comes back must not be needed by the last ones.
        """
        there = set(present)
        due = self._spec.quorum_of(len(self._seats)) - self._finished
        return max(1, min(self._spec.quorum_of(len(there) + len(self.missing(there))), due))

    def missing(self, present: Iterable[int]) -> list[int]:
        """Return the seats whose commits a synchronous round still waits for."""
        waiting = set(present)
        return [
            number
            for number, seat in enumerate(self._seats)
            if seat.status != "finished" and seat.rows != 0 and number not in waiting
        ]

    # Commits

    def admit(self, arrival: PendingCommit) -> bool:
        """Check a commit before it is folded."""
        seat = self._current(arrival.session)
        commit = arrival.commit
        who = _window_of(arrival)
        if seat.status != "running":
            raise RefusedError(f"{who}: the worker was not told to start. Received: a commit.")
        if commit.sequence < seat.next_sequence:
            return False
        if commit.sequence > seat.next_sequence:
            raise RefusedError(
                f"{who}: commit {seat.next_sequence} is expected. Received: commit "
                f"{commit.sequence}."
            )
        if commit.version > self.version:
            raise RefusedError(
                f"{who}: the center is at version {self.version}. Received: a window that started "
                f"from version {commit.version}."
            )
        self._check_place(arrival, seat.rows or 0)
        if not self._metrics.takes(commit.state):
            raise RefusedError(
                f"{who}: the state of its metrics must be as long as that of other windows. "
                f"Received: {len(commit.state)} bytes."
            )
        # Each row is trained once in each epoch, whatever the windows are, and a window lies within
        # the epochs between two exchanges.
        rows, schedule = seat.rows or 0, self._spec.schedule
        left = rows * schedule.epochs_left - seat.samples_folded - seat.samples_dropped
        left = min(left, rows * schedule.epochs_per_window)
        if not 1 <= commit.steps <= commit.samples <= left:
            raise RefusedError(
                f"{who}: a window has at least one step, one sample a step, and no more samples "
                f"than the worker has left for it. Received: {commit.steps} steps, "
                f"{commit.samples} samples of {left}."
            )
        return True

    def _check_place(self, arrival: PendingCommit, rows: int) -> None:
        """Refuse a commit from an epoch or a window that a seat of so many rows does not have."""
        commit, schedule = arrival.commit, self._spec.schedule
        first, windows = schedule.epochs_before + 1, schedule.windows_per_epoch(rows)
        if not (first <= commit.epoch <= schedule.epochs and commit.window < windows):
            raise RefusedError(
                f"{_window_of(arrival)}: the worker has the epochs {first} to {schedule.epochs}, "
                f"with {windows} windows each. Received: a commit of another one."
            )
        local, drawn = commit.local, self._spec.data.local
        if local is None:
            return
        if drawn is None:
            raise RefusedError(
                f"{_window_of(arrival)}: workers of this run draw no local sets. Received: the "
                "result of one."
            )
        if (local.train, local.test) != (drawn.local_train, drawn.local_test):
            raise RefusedError(
                f"{_window_of(arrival)}: a local set has {drawn.local_train} tiles for training "
                f"and {drawn.local_test} for the test. Received: {local.train} and {local.test}."
            )

    def check_finite(self, arrival: PendingCommit, finite: bool) -> str:
        """Return what is not finite in an admitted commit, in words; empty if all is."""
        loss = arrival.commit.loss
        if loss is not None and not math.isfinite(loss):
            reason = f"the loss is {loss}"
        elif not finite:
            reason = "the weights contain NaN or infinity"
            reason += "" if loss is None else f" (loss {loss:g})"
        else:
            return ""
        if self._spec.skips_nonfinite:
            return reason
        raise RefusedError(
            f"{_window_of(arrival)}: {reason}. Nothing was folded; lower the learning rate or "
            "check the data."
        )

    def is_through(self, number: int) -> bool:
        """Whether a worker has no windows left: all its samples have come, or the run stops."""
        seat = self._seats[number]
        due = (seat.rows or 0) * self._spec.schedule.epochs_left
        return self.stop or seat.samples_folded + seat.samples_dropped >= due

    def waits_for_driver(self, number: int) -> bool:
        """Whether a worker is at the end of an epoch after which callbacks have not acted yet."""
        seat, schedule = self._seats[number], self._spec.schedule
        if not schedule.epoch_barrier or not seat.rows or self.is_through(number):
            return False
        trained = (seat.samples_folded + seat.samples_dropped) // seat.rows
        return schedule.epochs_before + trained > self.epochs_acted

    @property
    def driver_is_due(self) -> bool:
        """Whether workers wait for the driver, because an epoch has ended for all of them."""
        return self._spec.schedule.epoch_barrier and self._epochs_ended > self.epochs_acted

    @property
    def all_through(self) -> bool:
        """Whether no worker has windows left."""
        return all(self.is_through(number) for number in range(len(self._seats)))

    def info(self, arrival: PendingCommit) -> CommitInfo:
        """Return what the rule may know about an admitted commit.

        Its staleness is computed from the version that it names. So a connection that broke in the
        meantime, or a lost reply, does not make an old window look new.
        """
        commit = arrival.commit
        staleness = 0 if self._separate else self.version - commit.version
        return CommitInfo(arrival.session.seat, commit.steps, commit.samples, staleness)

    def fold(
        self, arrivals: list[PendingCommit], now: float, reply_bytes: Sequence[int] = ()
    ) -> tuple[list[CommitReply], range]:
        """Count commits that are folded in one step: one commit, or all of a round.

        `now`: unix seconds.
        `reply_bytes`: bytes of each reply's vector; by default replies have none.
        """
        infos = [self.info(arrival) for arrival in arrivals]
        before = self._count_of(self._spec.snapshots_per_epoch)
        self.version += 1
        replies = []
        sizes = reply_bytes or [0] * len(arrivals)
        for arrival, info, size in zip(arrivals, infos, sizes, strict=True):
            seat = self._seats[info.seat]
            seat.next_sequence += 1
            seat.samples_folded += info.samples
            self.samples_folded += info.samples
            reply = self._reply(arrival)
            self._metrics.add(arrival.commit.state, arrival.commit.sources)
            self._log_window(arrival, info, encoded_size(reply, size), now)
            self._log_local(arrival, folded=True)
            replies.append(reply)
        return replies, self._pass(before, now)

    def is_late(self, arrival: PendingCommit) -> bool:
        """Whether the round of a synchronous commit has closed without it."""
        return arrival.commit.version < self.version

    def drop(self, arrival: PendingCommit, now: float) -> tuple[CommitReply, range]:
        """Count a commit that arrived after its round, without folding its samples.

        `now`: unix seconds.
        """
        info = self.info(arrival)
        commit = arrival.commit
        self.events.add(
            LateRecord(
                worker=info.seat,
                attempt=arrival.session.attempt,
                epoch=commit.epoch,
                window=commit.window,
                samples=commit.samples,
                staleness=info.staleness,
                version=self.version,
                at=now,
            )
        )
        return self._set_aside(arrival, now)

    def skip(
        self, arrival: PendingCommit, reason: str, norm: float | None, now: float
    ) -> tuple[CommitReply, range]:
        """Count a commit that is not folded because of what is in it.

        `now`: unix seconds.
        """
        session, commit = arrival.session, arrival.commit
        seat = self._seats[session.seat]
        seat.skipped = commit.sequence
        self.events.add(
            SkippedRecord(
                worker=session.seat,
                attempt=session.attempt,
                host=seat.host,
                epoch=commit.epoch,
                window=commit.window,
                samples=commit.samples,
                loss=commit.loss,
                norm=norm,
                reason=reason,
                version=self.version,
                at=now,
            )
        )
        answer, due = self._set_aside(arrival, now)
        return msgspec.structs.replace(answer, skipped=True), due

    def _set_aside(self, arrival: PendingCommit, now: float) -> tuple[CommitReply, range]:
        """Count a commit as answered, and its samples as dropped."""
        info = self.info(arrival)
        before = self._count_of(self._spec.snapshots_per_epoch)
        seat = self._seats[info.seat]
        seat.next_sequence += 1
        seat.samples_dropped += info.samples
        self.samples_dropped += info.samples
        self._log_local(arrival, folded=False)
        return self._reply(arrival), self._pass(before, now)

    def repeat(self, arrival: PendingCommit) -> CommitReply:
        """Answer a commit that was answered before; nothing is counted again."""
        skipped = self._seats[arrival.session.seat].skipped == arrival.commit.sequence
        return msgspec.structs.replace(self._reply(arrival), skipped=skipped)

    def describe(self, arrival: PendingCommit) -> str:
        """Return which window of which worker a commit is, for errors."""
        host = self._seats[arrival.session.seat].host
        return f"{_window_of(arrival)}, Spark task {arrival.session.attempt}" + (
            f", host {host}" if host else ""
        )

    def is_of_attempt(self, number: int, attempt: int) -> bool:
        """Whether a seat was taken by this attempt before; also False if there is no such seat."""
        return number < len(self._seats) and self._seats[number].attempt == attempt

    def is_current(self, session: ConnectionId) -> bool:
        """Whether no newer connection has the session's seat."""
        return self._seats[session.seat].session == session.number

    def check(self, session: ConnectionId) -> None:
        """Refuse every connection to a seat but the newest."""
        self._current(session)

    @property
    def over(self) -> bool:
        """Whether enough seats have finished, so that the run does not wait for the others."""
        return self._finished >= self._spec.quorum_of(len(self._seats))

    @property
    def _finished(self) -> int:
        return sum(seat.status == "finished" for seat in self._seats)

    def _reply(self, arrival: PendingCommit) -> CommitReply:
        return CommitReply(
            self.version,
            self.stop,
            self.learning_rate,
            sequence=arrival.commit.sequence,
        )

    def _pass(self, before: int, now: float) -> range:
        """End the epochs that are over, and return the snapshots that became due since `before`."""
        while self._epochs_ended < self._count_of(1):
            self._epochs_ended += 1
            told = self._metrics.take(), dict(self._metrics.sources)
            self.events.add(
                EpochEnded(self._epochs_ended, self.version, self.samples_folded, now, *told)
            )
        return range(before + 1, self._count_of(self._spec.snapshots_per_epoch) + 1)

    def _count_of(self, parts: int) -> int:
        """Return how many parts the samples so far have passed, where an epoch has `parts`."""
        spec = self._spec
        if self._ended:
            return parts * spec.epochs
        passed = self.samples_folded + self.samples_dropped - spec.schedule.repeated
        return min(passed * parts // spec.rows, parts * spec.epochs)

    # The driver

    def update(
        self,
        seen: int,
        before_epoch: float = math.inf,
        moment: int = 0,
        waiting: Container[int] = (),
    ) -> CenterUpdate:
        """Return the current state of the run, and the events after the first `seen`.

        The first `seen` events are dropped. The end of `before_epoch`, and later events, are not
        reported yet. Seats are told that have changed after a `format_time`. The commits of the
        seats `waiting` wait for those of others.
        """
        now = max((at for _, at in self._told.values()), default=0)
        for number, seat in enumerate(self._seats):
            status = self._status(number, seat, waiting=number in waiting)
            if number not in self._told or self._told[number][0] != status:
                self._told[number] = status, now + 1
        seats = tuple(status for status, at in self._told.values() if at > moment)
        events = tuple(self.events.after(seen, EVENTS_PER_UPDATE, before_epoch))
        now = max(at for _, at in self._told.values())
        return CenterUpdate(self.version, self.samples_folded, seats, events, seen, moment=now)

    def _status(self, number: int, seat: _Seat, *, waiting: bool) -> SeatStatus:
        return SeatStatus(
            number,
            seat.attempt,
            seat.status,
            seat.rows,
            seat.samples_folded,
            doing="waiting" if waiting else seat.doing,
            done=seat.done,
            commits=seat.next_sequence,
            beats=seat.beats,
            host=seat.host,
            log=seat.log,
            tries=seat.tries,
        )

    def begin(self) -> None:
        """Let ready seats start, whoever is missing."""
        self.started = True

    def command(
        self, stop: bool | None, learning_rate: float | None, epochs: int | None = None
    ) -> None:
        """Set what the workers receive with their next replies; None leaves a setting as it is.

        Callbacks have acted after so many `epochs`.
        """
        if learning_rate is not None and not 0 < learning_rate < math.inf:
            raise RefusedError(f"A learning rate is positive. Received: {learning_rate!r}.")
        if epochs is not None:
            self.epochs_acted = epochs
        if learning_rate is not None:
            self.learning_rate = learning_rate
            begins = self.epochs_acted + 1
            earlier = [(epoch, rate) for epoch, rate in self.rates if epoch < begins]
            self.rates = [*earlier, (begins, learning_rate)][-_MOST_RATES:]
        if stop is not None:
            self.stop = stop

    def log_failure(self, session: ConnectionId, error: str, message: str) -> None:
        """Report an error that ends a worker to the driver, by its class name and its message."""
        self._log_worker(
            session.seat, "failed", attempt=session.attempt, error=error, message=message
        )

    def _log_worker(
        self, number: int, status: str, *, attempt: int | None = None, **told: Any
    ) -> None:
        seat = self._seats[number]
        self.events.add(
            WorkerRecord(
                number,
                seat.attempt if attempt is None else attempt,
                status,
                seat.rows,
                at=self.now,
                host=seat.host,
                log=seat.log,
                tries=seat.tries,
                **told,
            )
        )

    def _log_window(
        self, arrival: PendingCommit, info: CommitInfo, bytes_down: int, now: float
    ) -> None:
        commit = arrival.commit
        self.events.add(
            WindowRecord(
                worker=arrival.session.seat,
                attempt=arrival.session.attempt,
                epoch=commit.epoch,
                window=commit.window,
                steps=commit.steps,
                samples=commit.samples,
                loss=commit.loss,
                metrics=commit.metrics,
                started=commit.started,
                seconds=commit.seconds,
                staleness=info.staleness,
                bytes_up=arrival.bytes_up,
                bytes_down=bytes_down,
                folded_at=now,
                version=self.version,
                learning_rate=commit.learning_rate,
            )
        )

    def _log_local(self, arrival: PendingCommit, *, folded: bool) -> None:
        session, commit = arrival.session, arrival.commit
        if commit.local is not None:
            self.events.add(
                LocalRecord(session.seat, session.attempt, commit.epoch, folded, commit.local)
            )

    def _current(self, session: ConnectionId) -> _Seat:
        """Return the seat of a session; every connection but the newest is fenced."""
        seat = self._seats[session.seat]
        if not self.is_current(session):
            raise self.fenced(session.seat, session.attempt)
        return seat

    def fenced(self, number: int, attempt: int) -> FencedError:
        """Return the error for an attempt, or an old connection of one, that lost its seat."""
        return FencedError(
            f"Worker {number} has a newer connection, of Spark task {self._seats[number].attempt}. "
            f"This one, of Spark task {attempt}, has to end."
        )

    # State

    @property
    def at_work(self) -> list[int]:
        """Seats whose workers train and have windows left."""
        return [
            number
            for number, seat in enumerate(self._seats)
            if seat.status == "running" and seat.rows and not self.is_through(number)
        ]

    def to_saved(self) -> dict[str, Any]:
        """Return what another execution of the run begins with: no sessions, no events."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "epochs_ended": self._epochs_ended,
            "ended": self._ended,
            "metrics": self._metrics.values.tolist() if self._metrics.known else None,
            "seats": [{name: getattr(seat, name) for name in _LASTING} for seat in self._seats],
            "rates": self.rates,
        }

    @classmethod
    def from_saved(cls, spec: RunSpec, saved: SavedLedger) -> Self:
        """Build the ledger of a run that goes on. All its seats are absent."""
        ledger = cls(spec)
        for name in _NUMBERS:
            setattr(ledger, name, getattr(saved, name))
        ledger._epochs_ended, ledger._ended = saved.epochs_ended, saved.ended
        ledger._metrics = MetricSums(saved.metrics or (), known=saved.metrics is not None)
        ledger.rates = list(saved.rates)
        for seat, told in zip(ledger._seats, saved.seats, strict=True):
            for name in _LASTING:
                setattr(seat, name, getattr(told, name))
        return ledger

"""Who has trained what, and what counts: commits, samples, versions, epochs, and the driver's news.

It is part of the server's core (`distkeras_grid.parameter_server.server_core`), without arithmetic
on weights, sockets, threads or clock. Times are arguments [s since 1970].
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import numpy as np

from distkeras_grid.errors import RefusedError
from distkeras_grid.parameter_server.checkpoint_state import SavedLedger
from distkeras_grid.parameter_server.events import EventLog
from distkeras_grid.parameter_server.frames import encoded_size
from distkeras_grid.parameter_server.membership import ConnectionId, Membership, Seat
from distkeras_grid.parameter_server.messages import (
    EVENTS_PER_UPDATE,
    CenterUpdate,
    CommitReply,
    SeatStatus,
    Start,
    WindowCommit,
)
from distkeras_grid.parameter_server.server_events import ReceivedCommit
from distkeras_grid.records import (
    EpochEnded,
    LateRecord,
    LocalRecord,
    LocalSet,
    SkippedRecord,
    WindowRecord,
)
from distkeras_grid.rules import CommitInfo, rule_of
from distkeras_grid.spec import RunSpec

#: Type of the numbers in the state of a metric.
_METRIC = np.dtype("<f8")
_NUMBERS = (
    "version",
    "samples_folded",
    "samples_dropped",
    "stop",
    "learning_rate",
)
#: Of a worker and of its work, what lasts longer than an execution of the run.
_LASTING_SEAT = ("rows", "digest", "tries")
_LASTING_WORK = ("next_sequence", "samples_folded", "samples_dropped")
#: Most learning rates that a worker is told which trains windows again, the newest ones.
_MOST_RATES = 1000


@dataclass(slots=True)
class _Work:
    """What of a seat's work has come."""

    next_sequence: int = 0
    samples_folded: int = 0
    samples_dropped: int = 0
    #: Number of its last commit that was skipped; -1 for none.
    skipped: int = -1


def _window_of(arrival: ReceivedCommit) -> str:
    commit = arrival.message
    return f"Worker {arrival.sender.seat}, epoch {commit.epoch}, window {commit.window}"


class Ledger:
    """The state of one run."""

    def __init__(self, spec: RunSpec) -> None:
        self.version = 0
        self.samples_folded = 0
        self.samples_dropped = 0
        self.stop = False
        self.learning_rate: float | None = None
        #: Epochs after which the driver's callbacks have acted.
        self.epochs_acted = spec.schedule.epochs_before
        #: The rates that the driver has set, each with the epoch from which it counts.
        self.rates: list[tuple[int, float]] = []
        self.events = EventLog()
        self.members = Membership(spec, self.events)
        self._spec = spec
        self._schedule = spec.schedule
        self._rows, self._epochs = spec.rows, spec.epochs
        self._epochs_before = spec.schedule.epochs_before
        self._epochs_left = spec.schedule.epochs_left
        self._repeated = spec.schedule.repeated
        self._snapshots_per_epoch = spec.snapshots_per_epoch
        self._separate = rule_of(spec.rule).traits.own_center
        self._work = [_Work() for _ in range(spec.workers)]
        self._epochs_ended = 0
        self._ended = False
        #: Snapshots that were due so far.
        self._snapshots_due = 0
        #: Sum of the states of the metrics of this epoch's windows, and where these come from.
        self._metrics = np.zeros(0, _METRIC)
        self._sources: Mapping[str, str] = {}

    # Seats

    def may_start(self, session: ConnectionId) -> bool:
        """Whether a ready seat may start. A seat without rows need not wait for the others."""
        return self.members.started or self.stop or self.members.seats[session.seat].rows == 0

    def start(self, session: ConnectionId) -> Start:
        """Let a seat start from the current center."""
        self.members.start(session)
        return Start(
            next_sequence=self._work[session.seat].next_sequence,
            version=self.version,
            newest=self.version,
            has_state=False,
            learning_rate=self.learning_rate,
            stop=self.stop,
        )

    def log_continuation(self, session: ConnectionId, state_windows: int | None) -> None:
        """Report from where a seat goes on, if it has windows in the center.

        `state_windows`: windows behind the state that its worker receives; None for a new one.
        """
        windows = self._work[session.seat].next_sequence
        if windows:
            self.members.log_status(
                session.seat, "continued", windows=windows, state_windows=state_windows
            )

    def next_sequence(self, number: int) -> int:
        """Return the number of the commit that is due from a seat."""
        return self._work[number].next_sequence

    def finish(self, session: ConnectionId) -> range:
        """Record that a seat has no windows left; a quorum of such seats ends the run."""
        self.members.finish(session)
        if self.stop or not self.members.over:
            return range(0)
        # The run does not wait for the remaining windows of late workers.
        self.stop = True
        self._ended = True
        return self.end_epochs()

    # Commits

    def is_new(self, arrival: ReceivedCommit, waiting: Iterable[ReceivedCommit] = ()) -> bool:
        """Return whether a commit has to be folded; one that was folded is only answered again.

        Any other commit than the next one of its seat is refused.

        `waiting`: commits with which it will be folded.
        """
        seat, commit = self.members.current(arrival.sender), arrival.message
        work = self._work[arrival.sender.seat]
        if seat.status == "running" and commit.sequence < work.next_sequence:
            return False
        lengths = (len(each.message.state) for each in waiting if not each.reason)
        length = self._metrics.nbytes or next(lengths, len(commit.state))
        if reason := self._unfit(seat, work, commit, length):
            raise RefusedError(f"{_window_of(arrival)}: {reason}.")
        return True

    def _unfit(self, seat: Seat, work: _Work, commit: WindowCommit, length: int) -> str:
        """Return why a commit cannot be the next one of a seat, empty if it is."""
        rows, schedule = seat.rows or 0, self._schedule
        windows, first = schedule.windows_per_epoch(rows), self._epochs_before + 1
        # Each row is trained once in each epoch, whatever the windows are, and a window lies within
        # the epochs between two exchanges.
        left = rows * self._epochs_left - work.samples_folded - work.samples_dropped
        left = min(left, rows * schedule.epochs_per_window)
        if seat.status != "running":
            return "the worker was not told to start. Received: a commit"
        if commit.sequence > work.next_sequence:
            return f"commit {work.next_sequence} is expected. Received: commit {commit.sequence}"
        if commit.version > self.version:
            return (
                f"the center is at version {self.version}. Received: a window that started from "
                f"version {commit.version}"
            )
        if not (first <= commit.epoch <= schedule.epochs and commit.window < windows):
            return (
                f"the worker has the epochs {first} to {schedule.epochs}, with {windows} windows "
                "each. Received: a commit of another one"
            )
        if len(commit.state) != length or length % _METRIC.itemsize:
            return (
                "the state of its metrics must be as long as that of other windows. Received: "
                f"{len(commit.state)} bytes"
            )
        if not 1 <= commit.steps <= commit.samples <= left:
            return (
                "a window has at least one step, one sample a step, and no more samples than the "
                f"worker has left for it. Received: {commit.steps} steps, {commit.samples} samples "
                f"of {left}"
            )
        return ""

    def check_finite(self, arrival: ReceivedCommit, finite: bool) -> str:
        """Return what is not finite in an admitted commit, in words; empty if all is."""
        loss = arrival.message.loss
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

    def has_finished(self, number: int) -> bool:
        """Whether a worker has no windows left: all its samples have come, or the run stops."""
        due = (self.members.seats[number].rows or 0) * self._epochs_left
        return self.stop or self._trained(number) >= due

    def _trained(self, number: int) -> int:
        """Return how many samples of a seat have come."""
        work = self._work[number]
        return work.samples_folded + work.samples_dropped

    def waits_for_driver(self, number: int) -> bool:
        """Whether a worker is at the end of an epoch after which callbacks have not acted yet."""
        rows = self.members.seats[number].rows
        if not self._schedule.epoch_barrier or not rows or self.has_finished(number):
            return False
        return self._epochs_before + self._trained(number) // rows > self.epochs_acted

    @property
    def driver_is_due(self) -> bool:
        """Whether workers wait for the driver, because an epoch has ended for all of them."""
        return self._schedule.epoch_barrier and self._epochs_ended > self.epochs_acted

    @property
    def all_finished(self) -> bool:
        """Whether no worker has windows left."""
        return all(map(self.has_finished, range(len(self._work))))

    def info(self, arrival: ReceivedCommit) -> CommitInfo:
        """Return what the rule may know about an admitted commit.

        Its staleness is computed from the version that it names. So a connection that broke in the
        meantime, or a lost reply, does not make an old window look new.
        """
        commit = arrival.message
        staleness = 0 if self._separate else self.version - commit.version
        return CommitInfo(arrival.sender.seat, commit.steps, commit.samples, staleness)

    def count_folded(
        self, arrival: ReceivedCommit, info: CommitInfo, reply_bytes: int
    ) -> CommitReply:
        """Count a commit that is in the present version; `end_epochs` follows the last of these.

        `info`: what `info` returned for it.
        `reply_bytes`: bytes of the reply's vector.
        """
        work, commit = self._work[info.seat], arrival.message
        work.next_sequence += 1
        work.samples_folded += info.samples
        self.samples_folded += info.samples
        reply = self._reply()
        self.events.add(
            WindowRecord(
                worker=info.seat,
                attempt=arrival.sender.attempt,
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
                bytes_down=encoded_size(reply, reply_bytes),
                folded_at=self.members.now,
                version=self.version,
                learning_rate=commit.learning_rate,
            )
        )
        state = np.frombuffer(commit.state, _METRIC)
        # Metrics may be infinite.
        with np.errstate(all="ignore"):
            self._metrics = self._metrics + state if self._metrics.size else state
        self._sources = commit.sources
        if commit.local is not None:
            self._log_local(arrival, commit.local, folded=True)
        return reply

    def is_late(self, arrival: ReceivedCommit) -> bool:
        """Whether the round of a synchronous commit has closed without it."""
        return arrival.message.version < self.version

    def drop(self, arrival: ReceivedCommit) -> tuple[CommitReply, range]:
        """Count a commit that arrived after its round, without folding its samples."""
        info = self.info(arrival)
        commit = arrival.message
        self.events.add(
            LateRecord(
                worker=info.seat,
                attempt=arrival.sender.attempt,
                epoch=commit.epoch,
                window=commit.window,
                samples=commit.samples,
                staleness=info.staleness,
                version=self.version,
                at=self.members.now,
            )
        )
        return self._set_aside(arrival)

    def skip(
        self, arrival: ReceivedCommit, reason: str, norm: float | None
    ) -> tuple[CommitReply, range]:
        """Count a commit that is not folded because of what is in it."""
        session, commit = arrival.sender, arrival.message
        self._work[session.seat].skipped = commit.sequence
        self.events.add(
            SkippedRecord(
                worker=session.seat,
                attempt=session.attempt,
                host=self.members.seats[session.seat].host,
                epoch=commit.epoch,
                window=commit.window,
                samples=commit.samples,
                loss=commit.loss,
                norm=norm,
                reason=reason,
                version=self.version,
                at=self.members.now,
            )
        )
        answer, due = self._set_aside(arrival)
        return msgspec.structs.replace(answer, skipped=True), due

    def _set_aside(self, arrival: ReceivedCommit) -> tuple[CommitReply, range]:
        """Count a commit as answered, and its samples as dropped."""
        info = self.info(arrival)
        work = self._work[info.seat]
        work.next_sequence += 1
        work.samples_dropped += info.samples
        self.samples_dropped += info.samples
        if arrival.message.local is not None:
            self._log_local(arrival, arrival.message.local, folded=False)
        return self._reply(), self.end_epochs()

    def repeat(self, arrival: ReceivedCommit) -> CommitReply:
        """Answer a commit that was answered before; nothing is counted again."""
        skipped = self._work[arrival.sender.seat].skipped == arrival.message.sequence
        return msgspec.structs.replace(self._reply(), skipped=skipped)

    def describe(self, arrival: ReceivedCommit) -> str:
        """Return which window of which worker a commit is, for errors."""
        host = self.members.seats[arrival.sender.seat].host
        return f"{_window_of(arrival)}, Spark task {arrival.sender.attempt}" + (
            f", host {host}" if host else ""
        )

    def _reply(self) -> CommitReply:
        return CommitReply(self.version, self.stop, self.learning_rate)

    def end_epochs(self) -> range:
        """End the epochs that are over, and return the snapshots that have become due."""
        while self._epochs_ended < self._count_of(1):
            self._epochs_ended += 1
            metrics, self._metrics = self._metrics.tobytes(), np.zeros(0, _METRIC)
            counts = self._epochs_ended, self.version, self.samples_folded
            sources = dict(self._sources)
            self.events.add(EpochEnded(*counts, self.members.now, metrics, sources))
        before = self._snapshots_due
        self._snapshots_due = self._count_of(self._snapshots_per_epoch)
        return range(before + 1, self._snapshots_due + 1)

    def _count_of(self, parts: int) -> int:
        """Return how many parts the samples so far have passed, where an epoch has `parts`."""
        if self._ended:
            return parts * self._epochs
        passed = self.samples_folded + self.samples_dropped - self._repeated
        return min(passed * parts // self._rows, parts * self._epochs)

    # The driver

    def update(
        self, offset: int, before_epoch: float = math.inf, waiting: Container[int] = ()
    ) -> CenterUpdate:
        """Return the current state of the run, and the events after the first `offset`.

        The first `offset` events are dropped. The end of `before_epoch`, and later events, are not
        reported yet. The commits of the seats `waiting` wait for those of others.
        """
        numbers = range(len(self._work))
        seats = tuple(self._status(number, waiting=number in waiting) for number in numbers)
        events = tuple(self.events.after(offset, EVENTS_PER_UPDATE, before_epoch))
        return CenterUpdate(self.version, self.samples_folded, seats, events)

    def _status(self, number: int, *, waiting: bool) -> SeatStatus:
        seat, work = self.members.seats[number], self._work[number]
        return SeatStatus(
            number,
            seat.attempt,
            seat.status,
            seat.rows,
            work.samples_folded,
            activity="waiting" if waiting else seat.activity,
            done=seat.done,
            commits=work.next_sequence,
            heartbeats=seat.heartbeats,
            host=seat.host,
            log=seat.log,
            tries=seat.tries,
        )

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

    def _log_local(self, arrival: ReceivedCommit, local: LocalSet, *, folded: bool) -> None:
        session, epoch = arrival.sender, arrival.message.epoch
        self.events.add(LocalRecord(session.seat, session.attempt, epoch, folded, local))

    # State

    @property
    def active_seats(self) -> list[int]:
        """Seats whose workers train and have windows left."""
        return [
            number
            for number, seat in enumerate(self.members.seats)
            if seat.status == "running" and seat.rows and not self.has_finished(number)
        ]

    def to_saved(self) -> dict[str, Any]:
        """Return what another execution of the run begins with: no sessions, no events."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "epochs_ended": self._epochs_ended,
            "ended": self._ended,
            "metrics": self._metrics.tolist(),
            "seats": [
                {
                    **{name: getattr(seat, name) for name in _LASTING_SEAT},
                    **{name: getattr(work, name) for name in _LASTING_WORK},
                }
                for seat, work in zip(self.members.seats, self._work, strict=True)
            ],
            "rates": self.rates,
        }

    @classmethod
    def from_saved(cls, spec: RunSpec, saved: SavedLedger) -> Self:
        """Build the ledger of a run that goes on. All its seats are absent."""
        ledger = cls(spec)
        for name in _NUMBERS:
            setattr(ledger, name, getattr(saved, name))
        ledger._epochs_ended, ledger._ended = saved.epochs_ended, saved.ended
        ledger._metrics = np.array(saved.metrics, _METRIC)
        ledger.rates = list(saved.rates)
        for number, seat in enumerate(saved.seats):
            for name in _LASTING_SEAT:
                setattr(ledger.members.seats[number], name, getattr(seat, name))
            for name in _LASTING_WORK:
                setattr(ledger._work[number], name, getattr(seat, name))
        ledger._snapshots_due = ledger._count_of(ledger._snapshots_per_epoch)
        return ledger

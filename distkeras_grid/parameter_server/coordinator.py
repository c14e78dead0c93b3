"""One lock around the state and the center.

Whatever changes either goes through here, so a commit is counted and folded in one step and every
reply is one version of the center. Receiving and sending happen outside the lock, in each
connection's own buffer. What cannot be answered at once (the start, a synchronous round) becomes a
`Pending` that whoever completes it answers.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from distkeras_grid.errors import ParameterServerError, RefusedError, RuleFailedError
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.compression import sparse_bytes, to_changes
from distkeras_grid.parameter_server.messages import (
    Exchanged,
    HandOver,
    Ready,
    Resumed,
    Start,
    StatePart,
    Step,
    Update,
)
from distkeras_grid.parameter_server.replay import KEPT_STEPS, KeptStep, Replay
from distkeras_grid.parameter_server.settings import ServerSettings
from distkeras_grid.parameter_server.state import Arrival, ServerState, Session
from distkeras_grid.rules import AsynchronousRule
from distkeras_grid.rules.magnitudes import Size, is_finite, size_of
from distkeras_grid.weights import Vector


@dataclass(slots=True, eq=False)
class Pending:
    """A question whose answer may still have to wait.

    Parameters
    ----------
    session : Session
        Who asked.
    vector : ndarray
        The asker's buffer: holds the commit, and the reply once there is an answer.
    arrival : Arrival or None
        The commit of a synchronous round; None at the start.
    deadline : float
        Moment on the monotonic clock at which a round fails; infinite at the start, where the
        client's own deadline holds.
    size : Size or None
        How large the numbers of the commit are.
    """

    session: Session
    vector: Vector
    arrival: Arrival | None = None
    deadline: float = float("inf")
    answer: Start | Exchanged | None = None
    error: ParameterServerError | None = None
    size: Size | None = None


class Coordinator:
    """State and center of one run.

    Parameters
    ----------
    settings : ServerSettings
        The run.
    center : ndarray
        The initial weights, shape ``(settings.size,)``, ``float32``; changes in place.
    """

    def __init__(self, settings: ServerSettings, center: Vector) -> None:
        self._settings = settings
        self._rule = settings.build_rule()
        self._center = Center(self._rule, center, settings.sections, settings.seats)
        self._state = ServerState(settings)
        self._snapshots: dict[int, Vector] = {}
        self._starting: list[Pending] = []
        self._round: dict[int, Pending] = {}
        self._replay = Replay() if self._rule.traits.steps_on_workers else None
        # Versions that seats are at, the optimizer state that each was promised at its start, and
        # versions of snapshots that wait for a worker's weights.
        self._at: dict[int, int] = {}
        self._promised: dict[int, list[Vector]] = {}
        self._awaited: dict[int, int] = {}
        self._sparse = settings.compression == "dgc"
        # What seats know of the center, where replies tell only what has changed.
        self._known: dict[int, Vector] = {}
        self._changed = threading.Condition()

    @property
    def replies_are_empty(self) -> bool:
        """Whether the rule sends no vector back."""
        return not self._rule.traits.reply_has_vector

    def join(self, seat: int, attempt: int) -> Session:
        """Give a seat to a connection; whatever an older connection to it had pending is dropped.

        Raises
        ------
        RefusedError
            If there is no such seat.
        FencedError
            If a newer attempt has it.
        """
        with self._changed:
            session = self._state.join(seat, attempt)
            self._drop(seat)
            return session

    def ready(self, session: Session, message: Ready, vector: Vector) -> Pending:
        """Let a seat wait for the start; the center comes into `vector`.

        Raises
        ------
        RefusedError
            If the rows are not those of the run; the driver is told as well.
        FencedError
            If the seat was taken over.
        """
        with self._changed:
            try:
                self._state.ready(session, message.rows, message.window_seconds)
            except RefusedError as error:
                self._state.log_failure(session, type(error).__name__, str(error))
                raise
            pending = Pending(session, vector)
            self._starting.append(pending)
            self._open_gate()
            return pending

    def resume(self, session: Session) -> Resumed:
        """Let a seat go on after a broken connection, from where it was.

        Raises
        ------
        RefusedError
            If the session's attempt was not told to start.
        FencedError
            If the seat was taken over.
        """
        with self._changed:
            resumed = self._state.resume(session)
            if session.seat in self._known:
                # What it knows was told by replies that may be lost: the next one tells all.
                self._known[session.seat].fill(0)
            return resumed

    def exchange(self, arrival: Arrival, vector: Vector) -> Pending:
        """Fold a commit, or let it wait for its round; the reply comes into `vector`.

        A commit that was folded before, or comes after its round, is answered and not folded.

        Raises
        ------
        RefusedError
            If it must not be folded; nothing was.
        FencedError
            If the seat was taken over.
        """
        size = size_of(vector)
        with self._changed:
            pending = Pending(arrival.session, vector, arrival, size=size)
            if not self._state.admit(arrival, size is not Size.NOT_FINITE):
                pending.answer = self._telling(self._state.repeat(arrival.session))
                self._center.repeat(vector, arrival.session.seat)
                self._shorten(pending)
            elif isinstance(self._rule, AsynchronousRule):
                self._fold(pending, arrival)
            elif self._state.is_late(arrival):
                self._drop_late(pending, arrival)
            else:
                self._join_round(pending)
            return pending

    def wait(self, pending: Pending, seconds: float) -> Start | Exchanged | None:
        """Wait for an answer.

        Parameters
        ----------
        pending : Pending
            The question.
        seconds : float
            Give up after that.

        Returns
        -------
        Start or Exchanged or None
            The answer; None if there is none yet.

        Raises
        ------
        ParameterServerError
            If there will be none: the seat was taken over, or the round took too long.
        """
        with self._changed:
            self._changed.wait_for(lambda: pending.answer or pending.error, seconds)
            if pending.answer is None and time.monotonic() > pending.deadline:
                self._fail_round()
            if pending.error is not None:
                raise pending.error
            return pending.answer

    def presence(self, pending: Pending) -> tuple[int, int]:
        """Return how many seats have come to where `pending` waits, and how many must."""
        with self._changed:
            if pending.arrival is None:
                return self._state.present, self._settings.seats
            return len(self._round), self._state.needed(self._round)

    def finish(self, session: Session) -> None:
        """Note that a seat has no windows left; a round may be complete without it.

        Raises
        ------
        FencedError
            If the seat was taken over.
        """
        with self._changed:
            self._snap(self._state.finish(session, time.time()))
            if self._state.over:
                # Who was asked for a snapshot's weights may never tell them.
                self._snap_awaited(self._state.version)
            self._open_gate()
            self._close_round()

    def fail(self, session: Session, error: str, message: str) -> None:
        """Note that a worker gave up.

        Raises
        ------
        FencedError
            If the seat was taken over.
        """
        with self._changed:
            self._state.fail(session, error, message)

    def lose(self, session: Session) -> None:
        """Note that a connection broke; what it had pending is dropped with it."""
        with self._changed:
            self._state.lose(session)
            self._drop(session.seat, session)

    def update(self, seen: int) -> Update:
        """Return the run as it is now, with the events after the first `seen`.

        An epoch's end is told when its snapshot is there.
        """
        with self._changed:
            missing = min(self._awaited, default=math.inf)
            return self._state.update(seen, missing / max(1, self._settings.snapshots_per_epoch))

    def command(self, stop: bool | None, learning_rate: float | None) -> None:
        """Set what the next replies tell the workers.

        Raises
        ------
        RefusedError
            If the learning rate is no positive number.
        """
        with self._changed:
            self._state.command(stop, learning_rate)
            self._open_gate()

    def fetch_step(self, session: Session, version: int, vector: Vector) -> Step:
        """Give a worker the step that follows its version; the gradient comes into `vector`.

        Raises
        ------
        RefusedError
            If the run keeps no such step, or none any more.
        FencedError
            If the seat was taken over.
        """
        with self._changed:
            self._state.check(session)
            step = self._replaying().step(version)
            self._promised.pop(session.seat, None)
            self._at[session.seat] = version
            np.copyto(vector, step.gradient)
            return Step(step.learning_rate)

    def fetch_state(self, session: Session, part: int, vector: Vector) -> StatePart:
        """Give a worker a part of the optimizer state, from 1; it comes into `vector`.

        It is the state of the worker's start, though a newer one may have come since.

        Raises
        ------
        RefusedError
            If there is no such part.
        FencedError
            If the seat was taken over.
        """
        with self._changed:
            self._state.check(session)
            parts = self._promised.get(session.seat, [])
            if not 1 <= part <= len(parts):
                raise RefusedError(f"The state has parts 1 to {len(parts)}, part {part} came in.")
            np.copyto(vector, parts[part - 1])
            return StatePart()

    def hand_over(self, session: Session, message: HandOver, vector: Vector) -> None:
        """Take a part of the weights and the optimizer state that a worker is at.

        Raises
        ------
        RefusedError
            If the run's workers keep none, the version is yet to come, the weights are not finite,
            or a part is missing before this one.
        FencedError
            If the seat was taken over.
        """
        with self._changed:
            self._state.check(session)
            replay = self._replaying()
            version, part = message.version, message.part
            if version > self._state.version or (part == 0 and not is_finite(vector)):
                raise RefusedError(
                    f"Worker {session.seat} tells weights of version {version}: they must be finite"
                    f" and of version {self._state.version} at most."
                )
            weights = replay.receive(session.seat, version, part, message.parts, vector)
            if weights is not None:
                self._center.replace(weights)
                self._snap_awaited(version)
                self._forget_steps()

    def fetch_center(self, snapshot: int | None, seat: int) -> tuple[Vector, int]:
        """Return a copy of a seat's center, or a snapshot of the one of all, and the version now.

        Raises
        ------
        RefusedError
            If there is no such snapshot or seat.
        """
        if not 0 <= seat < self._settings.seats:
            raise RefusedError(
                f"The run has seats 0 to {self._settings.seats - 1}, seat {seat} came in."
            )
        with self._changed:
            if snapshot is None:
                return self._center.of(seat).copy(), self._state.version
            if snapshot not in self._snapshots:
                raise RefusedError(
                    f"There is no snapshot {snapshot}: it is not due yet, was fetched before or"
                    f" the run keeps none ({self._settings.snapshots_per_epoch} an epoch)."
                )
            return self._snapshots[snapshot], self._state.version

    def forget_snapshot(self, snapshot: int) -> None:
        """Drop a snapshot that the driver has received."""
        with self._changed:
            self._snapshots.pop(snapshot, None)

    # All below is called with the lock held.

    def _open_gate(self) -> None:
        going = [entry for entry in self._starting if self._state.may_start(entry.session)]
        for entry in going:
            self._starting.remove(entry)
            self._center.greet(entry.session.seat, entry.vector)
            if self._tells_changes:
                self._known[entry.session.seat] = entry.vector.copy()
            answer = self._state.start(entry.session)
            if self._replay is not None:
                version, parts = self._replay.version, self._replay.parts
                answer = replace(answer, version=version, state_parts=len(parts))
                self._at[entry.session.seat] = version
                self._promised[entry.session.seat] = parts
            entry.answer = answer
        self._changed.notify_all()

    def _fold(self, pending: Pending, arrival: Arrival) -> None:
        try:
            self._center.fold(pending.vector, self._state.info(arrival), pending.size)
        except RuleFailedError as error:
            self._note_rule_failure(arrival.session, error)
            raise
        self._count([pending])

    def _note_rule_failure(self, session: Session, error: ParameterServerError) -> None:
        """Tell the driver that the run ends, if it is the rule that has failed."""
        if isinstance(error, RuleFailedError):
            self._state.log_failure(session, type(error).__name__, str(error))

    def _join_round(self, pending: Pending) -> None:
        first = next(iter(self._round.values()), None)
        pending.deadline = (
            first.deadline if first else time.monotonic() + self._settings.round_timeout
        )
        self._round[pending.session.seat] = pending
        self._close_round()

    def _close_round(self) -> None:
        """Fold the round if it has all that it needs."""
        if not self._round or len(self._round) < self._state.needed(self._round):
            return
        entries = [self._round[seat] for seat in sorted(self._round)]
        self._round.clear()
        try:
            self._center.combine(
                [entry.vector for entry in entries],
                [self._state.info(entry.arrival) for entry in entries if entry.arrival],
                [entry.size for entry in entries if entry.size],
            )
        except ParameterServerError as error:
            self._note_rule_failure(entries[0].session, error)
            for entry in entries:
                entry.error = error
            self._changed.notify_all()
            return
        if self._replay is not None:
            step = KeptStep(entries[0].vector.copy(), self._state.learning_rate)
            self._replay.add(self._state.version, step)
        self._count(entries)
        self._ask_for_state(entries[0])
        self._changed.notify_all()

    def _count(self, entries: list[Pending]) -> None:
        arrivals = [entry.arrival for entry in entries if entry.arrival]
        for entry in entries:
            self._shorten(entry)
        sizes = [sparse_bytes(entry.vector) for entry in entries] if self._sparse else []
        replies, due = self._state.fold(arrivals, time.time(), sizes)
        for entry, reply in zip(entries, replies, strict=True):
            entry.answer = self._telling(reply)
        self._snap(due)

    @property
    def _tells_changes(self) -> bool:
        return self._sparse and self._rule.traits.reply_has_vector

    def _shorten(self, entry: Pending) -> None:
        """Turn a reply into what its seat does not know, where replies tell that."""
        if self._tells_changes:
            to_changes(entry.vector, self._known[entry.session.seat])

    def _drop_late(self, pending: Pending, arrival: Arrival) -> None:
        answer, due = self._state.drop(arrival, time.time())
        pending.answer = self._telling(answer)
        self._center.repeat(pending.vector, pending.session.seat)
        self._shorten(pending)
        self._snap(due)

    def _snap(self, due: Iterable[int]) -> None:
        for snapshot in due:
            if self._replay is None or self._replay.version == self._state.version:
                self._snapshots[snapshot] = self._center.vector.copy()
            else:
                self._awaited[snapshot] = self._state.version

    def _snap_awaited(self, version: int) -> None:
        for snapshot in [s for s, due in self._awaited.items() if due <= version]:
            del self._awaited[snapshot]
            self._snapshots[snapshot] = self._center.vector.copy()

    def _replaying(self) -> Replay:
        if self._replay is None:
            raise RefusedError(f"Workers of the rule {self._rule.name!r} make no steps.")
        return self._replay

    def _telling(self, reply: Exchanged) -> Exchanged:
        version = 0 if self._replay is None else self._replay.version
        return replace(reply, state_version=version)

    def _ask_for_state(self, first: Pending) -> None:
        """Ask one worker of a round to hand over where it is, if that is due."""
        if self._replay is None or not isinstance(first.answer, Exchanged):
            return
        behind = self._state.version - self._replay.version
        if behind >= KEPT_STEPS or self._awaited:
            first.answer = replace(first.answer, state_wanted=True)
        self._forget_steps()

    def _forget_steps(self) -> None:
        # Who was told that a round has closed still asks for the step that it made.
        running = self._state.running()
        self._replaying().forget(at for seat, at in self._at.items() if seat in running)

    def _drop(self, seat: int, only: Session | None = None) -> None:
        """Forget what a seat's older connections, or the one of `only`, have pending."""
        waiting = [*self._starting, *self._round.values()]
        for entry in waiting:
            if entry.session.seat == seat and only in (None, entry.session):
                entry.error = self._state.fenced(seat, entry.session.attempt)
        self._starting = [entry for entry in self._starting if entry.error is None]
        self._round = {key: entry for key, entry in self._round.items() if entry.error is None}
        self._changed.notify_all()

    def _fail_round(self) -> None:
        missing = self._state.missing(self._round)
        error = RefusedError(
            f"A synchronous round was not complete after {self._settings.round_timeout:g} s:"
            f" no commit from worker {', '.join(map(str, missing))}. Look at what happened to it,"
            " allow more with round_timeout, or ask for fewer with quorum."
        )
        for entry in self._round.values():
            entry.error = error
        for number in missing:
            self._state.time_out(number, error)
        self._round.clear()
        self._changed.notify_all()

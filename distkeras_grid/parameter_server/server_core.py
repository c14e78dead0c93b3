"""The server's core: decides what to do about each event.

`ServerCore.handle(event, now)` takes one event and returns actions. It has no lock, socket, thread
or clock. The coordinator holds a lock and executes the actions; the simulation does so in simulated
time. The core owns the state of the run (`state`), the center and its rule (`center`), the common
start, synchronous rounds, snapshots (`snapshots`), and the steps of workers that make them
(`replay`).

An error that concerns only the sender of an event is raised. After a `RefusedError` nothing has
changed and the conversation continues; any other `ParameterServerError` ends it. Whatever concerns
other connections is an action.

What ends the run for everybody breaks the core: a rule that fails, an outlier where the
run is to stop, or anything that is no `ParameterServerError`, such as a `MemoryError`. A commit may
be in the center then and not in the ledger, so none is folded any more. Whoever waits is told, and
the driver is told once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from distkeras_grid.errors import (
    DataError,
    NonFiniteCenterError,
    OutlierError,
    ParameterServerError,
    ProtocolError,
    RefusedError,
    RuleFailedError,
    name_and_text,
)
from distkeras_grid.outliers import CommitStatistics
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.center_snapshots import Snapshots, SnapshotStore
from distkeras_grid.parameter_server.checkpoint_state import (
    CheckpointBarrier,
    SavedServer,
    kept_in_order,
)
from distkeras_grid.parameter_server.commit_filter import CommitFilter
from distkeras_grid.parameter_server.compression import DeltaEncoder
from distkeras_grid.parameter_server.gradient_log import KEPT_STEPS, GradientLog, LoggedStep
from distkeras_grid.parameter_server.messages import (
    BeginCheckpoint,
    CheckpointPart,
    Command,
    CommitReply,
    Done,
    FetchCenter,
    FetchPart,
    FetchState,
    FetchStep,
    GetWorkerState,
    GoOn,
    Heartbeat,
    Message,
    OptimizerState,
    Poll,
    PutOptimizerState,
    PutWorkerState,
    Ready,
    Resume,
    Start,
    Step,
    WindowCommit,
    WorkerEnd,
    WorkerError,
    WorkerStateReply,
)
from distkeras_grid.parameter_server.messages import (
    CenterReply as CenterMessage,
)
from distkeras_grid.parameter_server.state import ConnectionId, Ledger, PendingCommit
from distkeras_grid.parameter_server.worker_state_store import WorkerStateSnapshot, WorkerStateStore
from distkeras_grid.rules import AsynchronousRule, rule_of
from distkeras_grid.rules.finite_checks import Magnitude, size_of
from distkeras_grid.spec import RunSpec
from distkeras_grid.weights import StateSection, Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The driver as a sender and as a receiver. It has no seat.
DRIVER = ConnectionId(seat=-1, attempt=0, number=0)


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """An authenticated connection asks for a seat."""

    seat: int  # seat and attempt: The seat, and the attempt of the worker's task
    attempt: int


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedMessage:
    """A complete message has arrived."""

    sender: ConnectionId
    message: Message
    # The sender's buffer, shape ``(size,)``, ``float32``. It has the vector of the message, and
    # receives the vector of the answer.
    vector: Vector | None = None
    bytes_up: int = 0  # Bytes of the frame
    # How large the received numbers are, found out before the lock is taken
    size: Magnitude | None = None
    # The state that came with the message, instead of a vector. The core keeps it.
    state: NDArray[np.uint8] | None = None

    @property
    def finite(self) -> bool:
        """Whether all received numbers are finite."""
        return self.size is not Magnitude.NOT_FINITE


def received(
    section: StateSection,
    sender: ConnectionId,
    message: Message,
    vector: Vector | None = None,
    bytes_up: int = 0,
    state: NDArray[np.uint8] | None = None,
) -> ReceivedMessage:
    """Return the event of a message, after a look at the numbers that came with it."""
    size = None
    if state is not None and isinstance(message, PutOptimizerState):
        if state.shape != (section.nbytes,):
            raise RefusedError(
                f"The optimizer's state has {section.nbytes} bytes. Received: {state.size}."
            )
        size = Magnitude.LARGE if section.is_finite(state) else Magnitude.NOT_FINITE
    elif vector is not None and isinstance(message, WindowCommit | PutOptimizerState):
        size = size_of(vector)
    return ReceivedMessage(sender, message, vector, bytes_up, size, state)


@dataclass(frozen=True, slots=True)
class Disconnect:
    """A connection has ended, for whatever reason."""

    sender: ConnectionId


Event: TypeAlias = JoinRequest | ReceivedMessage | Disconnect


@dataclass(frozen=True, slots=True)
class SeatGrant:
    """The connection that asked to join has the seat from now on."""

    session: ConnectionId


@dataclass(frozen=True, slots=True, eq=False)
class SendReply:
    """Send a message."""

    to: ConnectionId  # The receiver
    message: Message
    # Vector of the message; it does not change until the receiver sends the next message
    vector: Vector | None = None
    size: int = 0  # Bytes of the section as it is sent
    state: NDArray[np.uint8] | None = None  # State of the message, instead of a vector
    # A tree to be packed as the state, which takes time and needs no lock
    tree: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RejectWaiter:
    """End a session's wait with an error; after a refusal the conversation continues."""

    to: ConnectionId
    error: ParameterServerError


Action: TypeAlias = SeatGrant | SendReply | RejectWaiter


@dataclass(slots=True, eq=False)
class _Waiter:
    """A session that waits for an answer, with its commit if it sent one."""

    session: ConnectionId
    vector: Vector
    arrival: PendingCommit | None = None
    size: Magnitude | None = None
    #: What is wrong with the commit, in words; empty if it may be folded.
    reason: str = ""
    measure: CommitStatistics | None = None


class ServerCore:
    """The state and the decisions of the parameter server.

    `center`: the initial weights, shape ``(spec.size,)``, ``float32``; changes in place.
    """

    def __init__(self, spec: RunSpec, center: Vector, shelf: SnapshotStore | None = None) -> None:
        self._spec = spec
        self._rule = rule_of(spec.rule)
        self.center = Center(self._rule, center, spec.layout.sections, spec.workers)
        self.ledger = Ledger(spec)
        self._snapshots = Snapshots(spec.snapshots_per_epoch, shelf)
        self._keeping = WorkerStateStore(spec.workers, active=spec.layout.kept_limit > 0)
        self._gathering = CheckpointBarrier()
        # The state of the last checkpoint: the server's own, and what workers keep.
        self._captured: tuple[Mapping[str, Any], list[NDArray[np.uint8]]] | None = None
        self._replay: GradientLog | None = None
        if self._rule.traits.steps_on_workers:
            self._replay = GradientLog(spec.layout.state_section.nbytes)
        # Seats that were asked for weights and state, and have not told them.
        self._asked: set[int] = set()
        self._gate: list[_Waiter] = []
        # Answers that wait at the end of an epoch until the driver's callbacks have acted.
        self._held: dict[int, SendReply] = {}
        # Commits of a round.
        self._round: dict[int, _Waiter] = {}
        outliers = spec.exchange.outliers
        self._commit_filter = CommitFilter(outliers, self._rule.traits, spec.layout.sections)
        self._telling = self._new_telling()
        # What has ended the run: no commit is folded any more, and nobody starts.
        self._broken: ParameterServerError | None = None
        self._handlers: Mapping[type[Message], Callable[[ReceivedMessage, float], list[Action]]] = {
            Ready: self._ready,
            Resume: self._resume,
            Heartbeat: self._beat,
            WindowCommit: self._commit,
            FetchStep: self._fetch_step,
            FetchState: self._fetch_state,
            PutOptimizerState: self._hand_over,
            PutWorkerState: self._keep,
            GetWorkerState: self._fetch_kept,
            WorkerEnd: self._finish,
            WorkerError: self._fail,
            Poll: self._poll,
            Command: self._command,
            BeginCheckpoint: self._gather,
            FetchPart: self._fetch_part,
            FetchCenter: self._fetch_center,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """Process an event.

        `now`: its time [s since 1970], never less than before.
        """
        # Who waits now; what fails later may have taken them from where they wait.
        entries = [*self._gate, *self._round.values()]
        waiting = [*(entry.session for entry in entries), *self._held_back]
        try:
            return self._process(event, now)
        except ParameterServerError:
            raise
        except Exception as error:  # noqa: BLE001
            return self._break(event, waiting, error)

    def _process(self, event: Event, now: float) -> list[Action]:
        self.ledger.now = now
        if isinstance(event, ReceivedMessage):
            actions = self._handlers[type(event.message)](event, now)
        elif isinstance(event, JoinRequest):
            actions = self._join(event)
        else:
            actions = self._lose(event.sender)
        return self._hold(actions)

    def _break(self, event: Event, waiting: list[ConnectionId], error: Exception) -> list[Action]:
        """End the run for all after an error that nothing has foreseen; the sender is told first.

        The event may have changed one thing and not the other, so there is no going on.
        """
        sender = _sender(event)
        if self._broken is None:
            self._broken = ParameterServerError(
                f"The parameter server failed with {name_and_text(error)}. The run ends, because "
                "a commit may have been folded and not counted. Start it again."
            )
            self._broken.__cause__ = error
            if sender != DRIVER:
                self._log_broken(sender, self._broken)
        self._gate, self._round, self._held = [], {}, {}
        told = dict.fromkeys([sender, *waiting])
        return [RejectWaiter(session, self._broken) for session in told]

    def _log_broken(self, session: ConnectionId, error: ParameterServerError) -> None:
        self.ledger.log_failure(session, type(error).__name__, str(error))

    # Seats

    def _join(self, event: JoinRequest) -> list[Action]:
        former = self.ledger.is_of_attempt(event.seat, event.attempt)
        session = self.ledger.join(event.seat, event.attempt)
        if not former:
            # The same attempt on another connection still has to answer what it was asked.
            self._keeping.lose(session.seat)
        self._stop_gathering(session.seat)
        return [SeatGrant(session), *self._drop(session.seat)]

    def _ready(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        if self._broken is not None:
            raise self._broken
        session, message = event.sender, _said(event, Ready)
        try:
            self.ledger.ready(
                session, message.rows, message.window_seconds, message.digest, message.road
            )
        except RefusedError as error:
            self.ledger.log_failure(session, type(error).__name__, str(error))
            raise
        self._gate.append(_Waiter(session, _vector(event)))
        return self._open_gate()

    def _resume(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        session = event.sender
        resumed = self.ledger.resume(session, _said(event, Resume).road)
        self._telling.forget(session.seat)
        return [SendReply(session, resumed)]

    def _beat(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        self.ledger.hear(event.sender, _said(event, Heartbeat))
        return [SendReply(event.sender, Done())]

    def _open_gate(self) -> list[Action]:
        going = [entry for entry in self._gate if self.ledger.may_start(entry.session)]
        self._gate = [entry for entry in self._gate if entry not in going]
        actions: list[Action] = []
        for at, entry in enumerate(going):
            seat, vector = entry.session.seat, entry.vector
            try:
                self.center.greet(seat, vector)
            except ParameterServerError as error:
                return actions + self._not_folded(going[at:], error, by=entry)
            self._telling.greet(seat, vector)
            start = self.ledger.start(entry.session)
            if self._replay is not None:
                self._replay.leave(seat)
                self._asked.discard(seat)
                version, has_state = self._replay.begin(seat)
                start = replace(start, version=version, has_state=has_state)
            kept = self._keeping.of(seat)
            self.ledger.go_on(entry.session, None if kept is None else kept.sequence)
            start = replace(start, has_kept=kept is not None, rates=tuple(self.ledger.rates))
            actions.append(SendReply(entry.session, start, vector, 4 * self._spec.size))
        return actions

    def _finish(self, event: ReceivedMessage, now: float) -> list[Action]:
        due = self.ledger.finish(event.sender, now)
        self._snap(due)
        if self._replay is not None:
            self._replay.leave(event.sender.seat)
        self._keeping.leave(event.sender.seat)
        self._stop_gathering(event.sender.seat)
        if self.ledger.over and self._broken is None:
            # The worker that was asked for a snapshot's weights may never send them.
            self._snapshots.arrive(self.ledger.version, self.center.vector)
        return [SendReply(event.sender, Done()), *self._open_gate(), *self._close_round(now)]

    def _fail(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        message = _said(event, WorkerError)
        self.ledger.fail(event.sender, message.error, message.message)
        self._stop_gathering(event.sender.seat)
        return [SendReply(event.sender, Done())]

    def _lose(self, session: ConnectionId) -> list[Action]:
        self.ledger.lose(session)
        if self.ledger.is_current(session):
            self._stop_gathering(session.seat)
            if self._replay is not None:
                self._replay.lose(session.seat)
        return self._drop(session.seat, session)

    def _drop(self, seat: int, only: ConnectionId | None = None) -> list[Action]:
        """Forget what a seat's older connections, or only the connection `only`, wait for."""
        dropped = [
            entry
            for entry in (*self._gate, *self._round.values())
            if entry.session.seat == seat and only in (None, entry.session)
        ]
        self._gate = [entry for entry in self._gate if entry not in dropped]
        for entry in dropped:
            if self._round.get(seat) is entry:
                del self._round[seat]
        left = [each for each in self._held_back if each.seat == seat and only in (None, each)]
        if left:
            self._held.pop(seat, None)
        return [
            RejectWaiter(session, self.ledger.fenced(seat, session.attempt))
            for session in (*(entry.session for entry in dropped), *left)
        ]

    # The end of an epoch

    def _hold(self, actions: list[Action]) -> list[Action]:
        """Keep back what would let a worker begin an epoch before callbacks have acted.

        Where workers make the steps, it is their next round that waits (`_close_round`): they have
        to send the weights that the callbacks see, and their gradients depend on no rate. Who is
        asked for what it keeps waits when it has sent that.
        """
        going = []
        for action in actions:
            if (
                isinstance(action, SendReply)
                and isinstance(action.message, CommitReply | Start | GoOn)
                and not (isinstance(action.message, CommitReply) and action.message.keep)
                and self._replay is None
                and self.ledger.waits_for_driver(action.to.seat)
            ):
                self._held[action.to.seat] = action
            else:
                going.append(action)
        return going

    def _begin_epoch(self, now: float) -> list[Action]:
        """Send the answers that have waited for the driver, with what it wants now."""
        going = [
            held for seat, held in self._held.items() if not self.ledger.waits_for_driver(seat)
        ]
        actions: list[Action] = []
        for held in going:
            del self._held[held.to.seat]
            told: Message = held.message
            settings = {"stop": self.ledger.stop, "learning_rate": self.ledger.learning_rate}
            if isinstance(told, Start):
                told = replace(told, **settings, rates=tuple(self.ledger.rates))
            elif isinstance(told, CommitReply):
                told = replace(told, **settings, keep=self._asks(held.to.seat, now))
            elif isinstance(told, GoOn):
                told = replace(told, **settings)
            actions.append(dataclasses.replace(held, message=told))
        return actions

    @property
    def _held_back(self) -> list[ConnectionId]:
        return [held.to for held in self._held.values()]

    @property
    def driver_is_due(self) -> bool:
        """Whether workers wait for the driver, and what it has to see is there."""
        missing = self._snapshots.first_epoch_missing
        return self.ledger.driver_is_due and missing > self.ledger.epochs_acted + 1

    # Commits

    def _commit(self, event: ReceivedMessage, now: float) -> list[Action]:
        if self._broken is not None:
            raise self._broken
        arrival = PendingCommit(event.sender, _said(event, WindowCommit), event.bytes_up)
        entry = _Waiter(event.sender, _vector(event), arrival, event.size)
        if not self.ledger.admit(arrival):
            return self._repeat(entry, self.ledger.repeat(arrival), now)
        entry.reason = self.ledger.check_finite(arrival, event.finite) or arrival.commit.reason
        if isinstance(self._rule, AsynchronousRule):
            return self._check_commits([entry], now)
        if self.ledger.is_late(arrival):
            if entry.reason:
                return self._skip([entry], now)
            answer, due = self.ledger.drop(arrival, now)
            actions = self._repeat(entry, answer, now)
            self._snap(due)
            return actions
        self._round[event.sender.seat] = entry
        return self._close_round(now)

    def _close_round(self, now: float) -> list[Action]:
        """Fold the round if it is complete."""
        if not self._round or len(self._round) < self.ledger.needed(self._round):
            return []
        if self._replay is not None and any(map(self.ledger.waits_for_driver, self._round)):
            return []
        entries = [self._round[seat] for seat in sorted(self._round)]
        self._round.clear()
        return self._check_commits(entries, now)

    def _check_commits(self, entries: list[_Waiter], now: float) -> list[Action]:
        """Fold the commits that may be folded, and skip the others.

        A commit that is skipped counts as come: its round does not wait for another one.
        """
        candidates = [entry for entry in entries if not entry.reason]
        try:
            self._find_outliers(candidates)
        except OutlierError as error:
            return self._not_folded(entries, error, by=next(e for e in candidates if e.reason))
        taken = [entry for entry in entries if not entry.reason]
        skipped = [entry for entry in entries if entry.reason]
        folded = self._fold(taken, now) if taken else []
        return folded + self._skip(skipped, now)

    def _find_outliers(self, entries: list[_Waiter]) -> None:
        """Measure commits, and note which are outliers."""
        commit_filter = self._commit_filter
        if commit_filter.outliers is None:
            return
        for entry in entries:
            if entry.arrival is None:
                continue
            seat, commit = entry.session.seat, entry.arrival.commit
            own = self._spec.algorithm.own_start and seat > 0 and commit.sequence == 0
            center = self.center.of(seat)
            entry.measure = commit_filter.measure(
                entry.vector, center, commit.loss or 0.0, from_center=not own
            )
        together = [entry.measure for entry in entries if entry.measure is not None]
        for entry in entries:
            if entry.measure is None or entry.arrival is None:
                continue
            entry.reason = commit_filter.find(entry.measure, together)
            if entry.reason and commit_filter.outliers.on_outlier == "stop":
                raise OutlierError(
                    f"{self.ledger.describe(entry.arrival)}: {entry.reason}. The run stops, "
                    "because on_outlier is 'stop'. Look at the rows of this worker."
                )

    def _skip(self, entries: list[_Waiter], now: float) -> list[Action]:
        """Answer commits that are not folded because of what is in them."""
        actions: list[Action] = []
        for at, entry in enumerate(entries):
            if self._broken is not None:
                return actions + self._not_folded(entries[at:], self._broken)
            if entry.arrival is None:
                continue
            norm = None if entry.measure is None else entry.measure.norm
            reply, due = self.ledger.skip(entry.arrival, entry.reason, norm, now)
            # The state that the worker has kept may hold what made this window what it is.
            self._keeping.leave(entry.session.seat)
            self._snap(due)
            actions += self._begin_anew(entry, reply, now)
        return actions

    def _begin_anew(self, entry: _Waiter, reply: CommitReply, now: float) -> list[Action]:
        """Answer a commit that was skipped with the center, whatever the rule replies."""
        seat = entry.session.seat
        answer = replace(self._dated(reply), keep=self._asks(seat, now))
        if self._rule.traits.steps_on_workers:
            return [SendReply(entry.session, answer)]
        try:
            self.center.greet(seat, entry.vector)
        except ParameterServerError as error:
            return self._not_folded([entry], error)
        if not self._rule.traits.reply_has_vector:
            return [SendReply(entry.session, answer, entry.vector, 4 * self._spec.size)]
        size = self._tell(entry)
        return [SendReply(entry.session, answer, entry.vector, size)]

    def _fold(self, entries: list[_Waiter], now: float) -> list[Action]:
        """Fold one commit or a whole round; return the answers to all senders."""
        if self._broken is not None:
            return self._not_folded(entries, self._broken)
        arrivals = [entry.arrival for entry in entries if entry.arrival is not None]
        try:
            self._move_center(entries, arrivals)
        except NonFiniteCenterError as error:
            if not self._spec.skips_nonfinite:
                return self._not_folded(entries, error)
            for entry in entries:
                entry.reason = str(error)
            return self._skip(entries, now)
        except ParameterServerError as error:
            return self._not_folded(entries, error)
        self._commit_filter.remember(entry.measure for entry in entries)
        if self._replay is not None:
            step = LoggedStep(entries[0].vector.copy(), self.ledger.learning_rate)
            self._replay.add(self.ledger.version, step)
        sizes = [self._tell(entry) for entry in entries]
        replies, due = self.ledger.fold(arrivals, now, sizes)
        self._snap(due)
        actions: list[Action] = []
        for entry, reply, size in zip(entries, replies, sizes, strict=True):
            # It is enough if one of them sends the state.
            wanted = not actions and self._asks_for_state()
            if wanted:
                self._asked.add(entry.session.seat)
            dated = self._dated(reply, told=not wanted and self._others_tell(entry.session.seat))
            answer = replace(dated, state_wanted=wanted, keep=self._asks(entry.session.seat, now))
            actions.append(SendReply(entry.session, answer, self._sent(entry), size))
        return actions

    def _move_center(self, entries: list[_Waiter], arrivals: list[PendingCommit]) -> None:
        infos = [self.ledger.info(arrival) for arrival in arrivals]
        vectors = [entry.vector for entry in entries]
        if isinstance(self._rule, AsynchronousRule):
            self.center.fold(vectors[0], infos[0], entries[0].size)
        else:
            sizes = [entry.size or size_of(entry.vector) for entry in entries]
            self.center.combine(vectors, infos, sizes)

    def _not_folded(
        self, entries: list[_Waiter], error: ParameterServerError, by: _Waiter | None = None
    ) -> list[Action]:
        """Say why nothing was folded, or nobody starts.

        Whatever is not refused, such as a rule that failed, ends the run. The driver is
        told once, of the worker `by`, or the last one, and whoever else waits is not answered any
        more.
        """
        if isinstance(error, RefusedError):
            return [RejectWaiter(entry.session, error) for entry in entries]
        if self._broken is None:
            self._broken = error
            self._log_broken((by or entries[-1]).session, error)
        waiting = [*entries, *self._gate, *self._round.values()]
        sessions = [*(entry.session for entry in waiting), *self._held_back]
        self._gate, self._round, self._held = [], {}, {}
        return [RejectWaiter(session, self._broken) for session in sessions]

    def _repeat(self, entry: _Waiter, reply: CommitReply, now: float) -> list[Action]:
        """Answer a commit that is not folded with the current center."""
        if reply.skipped:
            return self._begin_anew(entry, reply, now)
        try:
            self.center.repeat(entry.vector, entry.session.seat)
        except ParameterServerError as error:
            return self._not_folded([entry], error)
        size = self._tell(entry)
        answer = replace(self._dated(reply), keep=self._asks(entry.session.seat, now))
        return [SendReply(entry.session, answer, self._sent(entry), size)]

    def _asks(self, seat: int, now: float) -> bool:
        """Whether the reply asks for what the worker keeps; one without windows goes on nowhere."""
        if self.ledger.is_through(seat):
            return False
        return self._keeping.asks(seat, now, wanted=self._gathering.asks(seat))

    def _tell(self, entry: _Waiter) -> int:
        """Replace a reply by what is sent of it; return the number of bytes."""
        return self._telling.tell(entry.session.seat, entry.vector)

    def _sent(self, entry: _Waiter) -> Vector | None:
        return entry.vector if self._rule.traits.reply_has_vector else None

    def _new_telling(self) -> DeltaEncoder:
        spec = self._spec
        return DeltaEncoder(spec.compression, spec.size, replies=self._rule.traits.reply_has_vector)

    def _dated(self, reply: CommitReply, *, told: bool = False) -> CommitReply:
        version = 0 if self._replay is None else self._replay.version
        return replace(reply, state_version=self.ledger.version if told else version)

    # Snapshots and steps

    def _snap(self, due: range) -> None:
        if self._broken is not None:
            # The center may be folded by half, and the run has ended.
            return
        version = self.ledger.version
        if self._replay is None or self._replay.version == version:
            self._snapshots.take(due, self.center.vector)
        else:
            self._snapshots.wait_for(due, version)

    def _asks_for_state(self) -> bool:
        """Whether one worker of the round is to send its weights and its optimizer's state."""
        if self._replay is None:
            return False
        self._replay.forget(self.ledger.version)
        behind = self.ledger.version - self._replay.version
        ends = self._waits_for_all and self.ledger.all_through
        return behind >= KEPT_STEPS or self._snapshots.awaits or ends

    def _others_tell(self, seat: int) -> bool:
        """Whether a worker that has no windows left need not send its weights and its state.

        One that is asked in this round or in a later one sends them. If that one is lost, its next
        attempt sends them, and the run waits for it.
        """
        return self._replay is not None and self._waits_for_all and self.ledger.is_through(seat)

    @property
    def _waits_for_all(self) -> bool:
        """Whether the run cannot end without one of its workers."""
        workers = self._spec.workers
        return self._spec.quorum_of(workers) == workers and not self.ledger.stop

    def _fetch_step(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        self.ledger.check(event.sender)
        version = _said(event, FetchStep).version
        step = self._replaying().step(event.sender.seat, version)
        size = self._telling.bytes_of(step.gradient)
        return [SendReply(event.sender, Step(step.learning_rate, version), step.gradient, size)]

    def _fetch_state(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        self.ledger.check(event.sender)
        found = self._replaying().promised(event.sender.seat)
        return [SendReply(event.sender, OptimizerState(), size=found.nbytes, state=found)]

    def _hand_over(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        session, version = event.sender, _said(event, PutOptimizerState).version
        self.ledger.check(session)
        replay = self._replaying()
        self._check_told(event, version, replay)
        if event.state is not None:
            weights = replay.receive_state(session.seat, version, event.state)
        else:
            weights = replay.receive_weights(session.seat, version, _vector(event))
        if weights is not None:
            self._asked.discard(session.seat)
            self.center.replace(weights)
            self._snapshots.arrive(version, self.center.vector)
            replay.forget(self.ledger.version)
        return [SendReply(session, Done())]

    def _check_told(self, event: ReceivedMessage, version: int, replay: GradientLog) -> None:
        """Refuse weights or state that a worker cannot have, or was not asked for."""
        seat = event.sender.seat
        if version > self.ledger.version or not event.finite:
            raise RefusedError(
                f"Worker {seat} hands over weights and optimizer state that must be finite and of "
                f"version {self.ledger.version} at most. Received: version {version}, "
                f"{'finite' if event.finite else 'not finite'}."
            )
        # What the server has already may be told again: the answer may have been lost.
        if (
            version > replay.version
            and seat not in self._asked
            and not self.ledger.is_through(seat)
        ):
            raise RefusedError(
                f"Worker {seat} is not asked for weights and optimizer state, and has windows left."
                f" Received: those of version {version}."
            )

    def _replaying(self) -> GradientLog:
        if self._replay is None:
            raise RefusedError(
                f"Workers of the rule {self._rule.name!r} make no steps. Received: a request for "
                "steps or for an optimizer's state."
            )
        return self._replay

    # What workers keep

    def _keep(self, event: ReceivedMessage, now: float) -> list[Action]:
        session, message = event.sender, _said(event, PutWorkerState)
        self.ledger.check(session)
        due = self.ledger.next_sequence(session.seat)
        if message.sequence != due or message.version > self.ledger.version:
            raise RefusedError(
                f"Worker {session.seat} keeps its state before commit {due}, with a center of "
                f"version {self.ledger.version} at most. Received: one before commit "
                f"{message.sequence} with version {message.version}."
            )
        if event.state is None or not self._keeping.awaits(session.seat, due):
            raise RefusedError(
                f"Worker {session.seat} is not asked for what it keeps. Received: such a state."
            )
        kept = WorkerStateSnapshot(message.sequence, message.version, event.state)
        self._keeping.receive(session.seat, kept, now)
        self._gathering.answered(session.seat)
        if self.ledger.waits_for_driver(session.seat):
            # Whoever asked for it, this is the state between the two epochs.
            self._gathering.lost(session.seat)
        self._capture()
        # Steps bring their own rates.
        rate = None if self._replay is not None else self.ledger.learning_rate
        return [SendReply(session, GoOn(self.ledger.stop, rate))]

    def _fetch_kept(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        session = event.sender
        self.ledger.check(session)
        kept = self._keeping.of(session.seat)
        if kept is None:
            raise RefusedError(
                f"Nothing is kept for worker {session.seat}. Received: a request for it."
            )
        message = WorkerStateReply(kept.sequence, kept.version)
        return [SendReply(session, message, size=kept.state.nbytes, state=kept.state)]

    # The driver

    def _poll(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        message = _said(event, Poll)
        self._snapshots.forget_given(None)
        missing = self._snapshots.first_epoch_missing
        events, number = self.ledger.events, self._gathering.number
        if message.captured >= number:
            events.go_on()
        waiting = {*self._round, *self._held}
        update = self.ledger.update(message.seen, missing, message.moment, waiting)
        if message.seen + len(update.events) == events.held_at:
            update = replace(update, captured=number)
        return [SendReply(DRIVER, update)]

    def _command(self, event: ReceivedMessage, now: float) -> list[Action]:
        message, before = _said(event, Command), self.ledger.learning_rate
        self._snapshots.forget_given(None)
        self.ledger.command(message.stop, message.learning_rate, message.epochs)
        if self.ledger.learning_rate != before:
            self._commit_filter.forget_norms()
        if message.begin:
            self.ledger.begin()
        going = [*self._begin_epoch(now), *self._open_gate()]
        return [SendReply(DRIVER, Done()), *going, *self._close_round(now)]

    def _fetch_center(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        message = _said(event, FetchCenter)
        self._snapshots.forget_given(message.snapshot)
        if not 0 <= message.seat < self._spec.workers:
            raise RefusedError(
                f"The run has the workers 0 to {self._spec.workers - 1}. Received: worker "
                f"{message.seat}."
            )
        if message.snapshot is None:
            try:
                center = self.center.of(message.seat).copy()
            except RuleFailedError as error:
                raise RefusedError(
                    f"There is no center to fetch: a part of it is folded, and the rest not. "
                    f"Received: {error}"
                ) from error
        else:
            center = self._snapshots.give(message.snapshot)
        return [SendReply(DRIVER, CenterMessage(self.ledger.version), center, center.nbytes)]

    # Checkpoints

    def _gather(self, event: ReceivedMessage, now: float) -> list[Action]:
        if self._broken is not None:
            raise RefusedError(f"There is no center to save. Received: {self._broken}")
        at_once = _said(event, BeginCheckpoint).at_once or not self._spec.layout.kept_limit
        waiting = [held for held in self._held.values() if isinstance(held.message, CommitReply)]
        # The others have just sent what they keep, or have not begun.
        silent = {seat for seat, held in self._held.items() if held not in waiting}
        self._gathering.begin([] if at_once else set(self.ledger.at_work) - silent)
        self._capture()
        return [
            SendReply(DRIVER, Done()),
            *(self._ask_held(held, now) for held in waiting if not at_once),
        ]

    def _ask_held(self, held: SendReply, now: float) -> SendReply:
        """Ask a worker that waits at the end of an epoch for what it keeps."""
        message, seat = held.message, held.to.seat
        if isinstance(message, CommitReply):
            message = replace(message, keep=self._asks(seat, now))
        del self._held[seat]
        return dataclasses.replace(held, message=message)

    def _stop_gathering(self, seat: int) -> None:
        """Do not wait for a seat that will not answer."""
        self._gathering.lost(seat)
        self._capture()

    def _capture(self) -> None:
        if not self._gathering.complete or self._broken is not None:
            return
        self._gathering.take()
        kept = self._keeping.all
        tree = {
            "ledger": self.ledger.to_saved(),
            "center": self.center.to_state(),
            "replay": None if self._replay is None else self._replay.to_saved(),
            "kept": {
                str(seat): {"sequence": each.sequence, "version": each.version}
                for seat, each in kept.items()
            },
            "outliers": self._commit_filter.to_saved(),
        }
        self._captured = tree, [each.state for each in kept.values()]
        # The driver's own state must be that of the same moment.
        self.ledger.events.hold()

    def _fetch_part(self, event: ReceivedMessage, now: float) -> list[Action]:  # noqa: ARG002
        asked = _said(event, FetchPart)
        tree, states = self._captured or ({}, [])
        if not tree or asked.number != self._gathering.number or asked.part > len(states):
            raise RefusedError(f"There is no such part of a checkpoint. Received: {asked}.")
        message = CheckpointPart(asked.part, 1 + len(states))
        if asked.part == 0:
            return [SendReply(DRIVER, message, tree=tree)]
        return [SendReply(DRIVER, message, state=states[asked.part - 1])]

    @classmethod
    def resumed(
        cls, spec: RunSpec, parts: Sequence[NDArray[np.uint8]], shelf: SnapshotStore | None = None
    ) -> Self:
        """Build the core of a run that goes on from a checkpoint."""
        saved = SavedServer.from_bytes(parts[0], spec)
        seats = kept_in_order(saved.kept)
        if len(parts) != 1 + len(seats):
            raise DataError(
                f"A checkpoint with the states of {len(seats)} workers is expected. Received: "
                f"{len(parts) - 1}."
            )
        core = cls(spec, np.zeros(spec.size, np.float32), shelf)
        core.ledger = Ledger.from_saved(spec, saved.ledger)
        core.center = Center.from_state(
            core._rule, spec.layout.sections, spec.workers, structs.asdict(saved.center)
        )
        if (core._replay is None) != (saved.replay is None):
            raise DataError("The state of a parameter server is not that of this run's rule.")
        if saved.replay is not None:
            size = spec.layout.state_section.nbytes
            core._replay = GradientLog.from_saved(saved.replay, size)
        core._commit_filter.restore(saved.outliers)
        for seat, state in zip(seats, parts[1:], strict=True):
            told = saved.kept[str(seat)]
            core._keeping.hold(seat, WorkerStateSnapshot(told.sequence, told.version, state))
        return core


_Said = TypeVar("_Said", bound=Message)


def _said(event: ReceivedMessage, kind: type[_Said]) -> _Said:
    """Return the message, which the table of handlers has chosen by its kind."""
    if not isinstance(event.message, kind):
        raise ProtocolError(f"{kind.__name__} is expected. Received: {event.message!r}.")
    return event.message


def _sender(event: Event) -> ConnectionId:
    """Return who an event is of; whoever joins has no session yet, or none that it knows of."""
    return (
        ConnectionId(event.seat, event.attempt, 0)
        if isinstance(event, JoinRequest)
        else event.sender
    )


def _vector(event: ReceivedMessage) -> Vector:
    if event.vector is None:
        raise ProtocolError(f"{event.message!r} needs a vector. Received: none.")
    return event.vector

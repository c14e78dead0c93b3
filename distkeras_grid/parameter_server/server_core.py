"""The server's core: decides what to do about each event.

`ServerCore.handle(event, now)` takes one event and returns actions. It has no lock, socket, thread
or clock. The service holds a lock and executes the actions; the simulation does so in simulated
time. The core owns who has which seat (`membership`), what has been trained (`ledger`), the center
and its rule (`center`), who waits (`waiters`), snapshots (`center_snapshots`), and what only some
runs need: steps of workers (`worker_steps`) and their states (`server_checkpoint`).

An error that concerns only the sender of an event is raised. After a `RefusedError` nothing has
changed and the conversation continues; any other `ParameterServerError` ends it. Whatever concerns
other connections is an action.

With ``on_outlier="stop"`` an outlier ends the run for everybody: no commit is folded any more.
Anything that is no `ParameterServerError`, such as a `MemoryError` or a defect of a rule, ends the
process of the server, because a commit may be in the center and not in the ledger. The driver reads
what it wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from distkeras_grid.errors import (
    DataError,
    NonFiniteCenterError,
    OutlierError,
    ParameterServerError,
    RefusedError,
    name_and_text,
)
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.center_snapshots import Snapshots, Spill
from distkeras_grid.parameter_server.checkpoint_state import (
    SavedServer,
    seats_in_order,
)
from distkeras_grid.parameter_server.commit_filter import CommitFilter
from distkeras_grid.parameter_server.compression import DeltaEncoder
from distkeras_grid.parameter_server.gradient_log import GradientLog
from distkeras_grid.parameter_server.ledger import Ledger
from distkeras_grid.parameter_server.membership import ConnectionId
from distkeras_grid.parameter_server.messages import (
    BeginCheckpoint,
    CenterReply,
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
    Poll,
    PutOptimizerState,
    PutWorkerState,
    Ready,
    Resume,
    Start,
    WindowCommit,
    WorkerEnd,
    WorkerError,
)
from distkeras_grid.parameter_server.server_checkpoint import ServerCheckpoint
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Action,
    Event,
    JoinRequest,
    ReceivedCommit,
    ReceivedMessage,
    RejectWaiter,
    SeatGrant,
    SendReply,
)
from distkeras_grid.parameter_server.waiters import Waiters
from distkeras_grid.parameter_server.worker_state_store import WorkerStateSnapshot
from distkeras_grid.parameter_server.worker_steps import WorkerSteps
from distkeras_grid.rules import AsynchronousRule, rule_of
from distkeras_grid.rules.finite_checks import Magnitude, size_of
from distkeras_grid.spec import RunSpec
from distkeras_grid.weights import Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ServerCore:
    """The state and the decisions of the parameter server.

    `center`: the initial weights, shape ``(spec.size,)``, ``float32``; changes in place.
    """

    def __init__(
        self,
        spec: RunSpec,
        center: Vector,
        spill: Spill = np.copy,
        saved: SavedServer | None = None,
    ) -> None:
        self._spec = spec
        self._rule = rule_of(spec.rule)
        self._reply_has_vector = self._rule.traits.reply_has_vector
        if saved is None:
            self.ledger = Ledger(spec)
            self.center = Center(self._rule, center, spec.layout.sections, spec.workers)
        else:
            self.ledger = Ledger.from_saved(spec, saved.ledger)
            self.center = Center.from_state(
                self._rule, spec.layout.sections, spec.workers, structs.asdict(saved.center)
            )
        self.members = self.ledger.members
        self._snapshots = Snapshots(spec.snapshots_per_epoch, spill)
        self._encoder = DeltaEncoder(spec.compression, spec.size, replies=self._reply_has_vector)
        self._commit_filter: CommitFilter | None = None
        if (outliers := spec.exchange.outliers) is not None:
            self._commit_filter = CommitFilter(outliers, self._rule.traits, spec.layout.sections)
        self._steps: WorkerSteps | None = None
        if self._rule.traits.steps_on_workers:
            replay = None if saved is None else saved.replay
            log = GradientLog() if replay is None else GradientLog.from_saved(replay)
            self._steps = WorkerSteps(
                *(spec, self.ledger, self.center, self._snapshots, self._encoder, log)
            )
        self._checkpoint = ServerCheckpoint(
            *(spec, self.ledger, self.center, self._steps, self._commit_filter)
        )
        self._waiters = Waiters()
        # The outlier that has stopped the run: no commit is folded any more, and nobody starts.
        self._stopped: OutlierError | None = None
        #: What has failed in the middle of an event, in words.
        self.failure = ""
        self._handlers: Mapping[type[Message], Callable[[ReceivedMessage[Any]], list[Action]]] = {
            Ready: self._ready,
            Resume: self._resume,
            Heartbeat: self._beat,
            WindowCommit: self._commit,
            FetchStep: self._step,
            FetchState: self._step,
            PutOptimizerState: self._step,
            PutWorkerState: self._checkpoint.keep,
            GetWorkerState: self._checkpoint.fetch,
            WorkerEnd: self._finish,
            WorkerError: self._fail,
            Poll: self._poll,
            Command: self._command,
            BeginCheckpoint: self._begin_checkpoint,
            FetchPart: self._checkpoint.part,
            FetchCenter: self._fetch_center,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """Process an event.

        `now`: its time [s since 1970], never less than before.
        """
        if self.failure:
            # To all it is a lost server: its process ends.
            raise ParameterServerError(f"The parameter server has failed with {self.failure}.")
        self.members.now = now
        try:
            if isinstance(event, ReceivedMessage):
                actions = self._handlers[type(event.message)](event)
            elif isinstance(event, JoinRequest):
                actions = self._join(event)
            else:
                actions = self._lose(event.sender)
            return self._hold(actions) if self._spec.schedule.epoch_barrier else actions
        except ParameterServerError:
            raise
        except Exception as error:
            self.failure = name_and_text(error)
            raise

    # Seats

    def _join(self, event: JoinRequest) -> list[Action]:
        former = self.members.is_of_attempt(event.seat, event.attempt)
        session = self.members.join(event.seat, event.attempt)
        if not former:
            # The same attempt on another connection still has to answer what it was asked.
            self._checkpoint.states.stop_waiting(session.seat)
        self._checkpoint.stop_waiting(session.seat)
        return [SeatGrant(session), *self._drop(session.seat)]

    def _ready(self, event: ReceivedMessage[Ready]) -> list[Action]:
        if self._stopped is not None:
            raise self._stopped
        session, message = event.sender, event.message
        try:
            self.members.ready(
                session, message.rows, message.window_seconds, message.digest, event.transport
            )
        except RefusedError as error:
            self.members.log_failure(session, type(error).__name__, str(error))
            raise
        self._waiters.gate.append(event)
        return self._open_gate()

    def _resume(self, event: ReceivedMessage[Resume]) -> list[Action]:
        session = event.sender
        self.members.resume(session, event.transport)
        self._encoder.reset(session.seat)
        return [SendReply(session, Done())]

    def _beat(self, event: ReceivedMessage[Heartbeat]) -> list[Action]:
        self.members.heartbeat(event.sender, event.message)
        return [SendReply(event.sender, Done())]

    def _open_gate(self) -> list[Action]:
        going = [entry for entry in self._waiters.gate if self.ledger.may_start(entry.sender)]
        self._waiters.gate = [entry for entry in self._waiters.gate if entry not in going]
        actions: list[Action] = []
        for entry in going:
            session, vector = entry.sender, entry.vector
            seat = session.seat
            self.center.on_join(seat, vector)
            self._encoder.start(seat, vector)
            start = self.ledger.start(session)
            if self._steps is not None:
                version, has_state = self._steps.begin(seat)
                start = replace(start, version=version, has_state=has_state)
            snapshot = self._checkpoint.states.of(seat)
            self.ledger.log_continuation(session, None if snapshot is None else snapshot.sequence)
            start = replace(
                start, has_worker_state=snapshot is not None, rates=tuple(self.ledger.rates)
            )
            actions.append(SendReply(session, start, vector, 4 * self._spec.size))
        return actions

    def _finish(self, event: ReceivedMessage[WorkerEnd]) -> list[Action]:
        self._snap(self.ledger.finish(event.sender))
        if self._steps is not None:
            self._steps.log.leave(event.sender.seat)
        self._checkpoint.states.clear(event.sender.seat)
        self._checkpoint.stop_waiting(event.sender.seat)
        if self.members.over and self._stopped is None:
            # The worker that was asked for a snapshot's weights may never send them.
            self._snapshots.on_weights(self.ledger.version, self.center.vector)
        return [SendReply(event.sender, Done()), *self._open_gate(), *self._close_round()]

    def _fail(self, event: ReceivedMessage[WorkerError]) -> list[Action]:
        message = event.message
        self.members.fail(event.sender, message.error, message.message)
        self._checkpoint.stop_waiting(event.sender.seat)
        return [SendReply(event.sender, Done())]

    def _lose(self, session: ConnectionId) -> list[Action]:
        self.members.lose(session)
        if self.members.is_current(session):
            self._checkpoint.stop_waiting(session.seat)
            if self._steps is not None:
                self._steps.log.lose(session.seat)
        return self._drop(session.seat, session)

    def _drop(self, seat: int, only: ConnectionId | None = None) -> list[Action]:
        dropped = self._waiters.drop(seat, only)
        return [
            RejectWaiter(session, self.members.fenced(seat, session.attempt)) for session in dropped
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
                and self._steps is None
                and self.ledger.waits_for_driver(action.to.seat)
            ):
                self._waiters.barrier[action.to.seat] = action
            else:
                going.append(action)
        return going

    def _begin_epoch(self) -> list[Action]:
        """Send the answers that have waited for the driver, with what it wants now."""
        actions: list[Action] = []
        for reply in list(self._waiters.barrier.values()):
            if self.ledger.waits_for_driver(reply.to.seat):
                continue
            del self._waiters.barrier[reply.to.seat]
            message: Message = reply.message
            settings = {"stop": self.ledger.stop, "learning_rate": self.ledger.learning_rate}
            if isinstance(message, Start):
                message = replace(message, **settings, rates=tuple(self.ledger.rates))
            elif isinstance(message, CommitReply):
                keep = self._checkpoint.asks(reply.to.seat)
                message = replace(message, **settings, keep=keep)
            elif isinstance(message, GoOn):
                message = replace(message, **settings)
            actions.append(dataclasses.replace(reply, message=message))
        return actions

    @property
    def driver_is_due(self) -> bool:
        """Whether workers wait for the driver, and what it has to see is there."""
        return self.ledger.driver_is_due and (
            self._snapshots.first_epoch_missing > self.ledger.epochs_acted + 1
        )

    # Commits

    def _commit(self, commit: ReceivedCommit) -> list[Action]:
        if self._stopped is not None:
            raise self._stopped
        if not self.ledger.is_new(commit, self._waiters.round.values()):
            return self._repeat(commit, self.ledger.repeat(commit))
        commit.size = commit.size or size_of(commit.vector)
        finite = commit.size is not Magnitude.NOT_FINITE
        commit.reason = self.ledger.check_finite(commit, finite) or commit.message.reason
        if isinstance(self._rule, AsynchronousRule):
            return self._fold_valid([commit])
        if self.ledger.is_late(commit):
            if commit.reason:
                return self._skip([commit])
            answer, due = self.ledger.drop(commit)
            actions = self._repeat(commit, answer)
            self._snap(due)
            return actions
        self._waiters.round[commit.sender.seat] = commit
        return self._close_round()

    def _close_round(self) -> list[Action]:
        """Fold the round if it is complete."""
        waiting = self._waiters.round
        if not waiting or len(waiting) < self.members.needed(waiting):
            return []
        if self._steps is not None and any(map(self.ledger.waits_for_driver, waiting)):
            return []
        self._waiters.round = {}
        return self._fold_valid([waiting[seat] for seat in sorted(waiting)])

    def _fold_valid(self, commits: list[ReceivedCommit]) -> list[Action]:
        """Fold the commits that may be folded, and skip the others.

        A commit that is skipped counts as come: its round does not wait for another one.
        """
        if self._commit_filter is not None:
            finite = [commit for commit in commits if not commit.reason]
            outlier = self._commit_filter.mark(finite, self.center, self._spec)
            if outlier is not None:
                return self._stop(commits, outlier)
        valid: list[ReceivedCommit] = []
        skipped: list[ReceivedCommit] = []
        for commit in commits:
            (skipped if commit.reason else valid).append(commit)
        folded = self._fold(valid) if valid else []
        return folded + self._skip(skipped) if skipped else folded

    def _stop(self, commits: list[ReceivedCommit], outlier: ReceivedCommit) -> list[Action]:
        """End the run because of an outlier; nothing of its round is folded."""
        self._stopped = OutlierError(
            f"{self.ledger.describe(outlier)}: {outlier.reason}. The run stops, because on_outlier "
            "is 'stop'. Look at the rows of this worker."
        )
        self._checkpoint.closed = True
        self.members.log_failure(outlier.sender, "OutlierError", str(self._stopped))
        sessions = [*(commit.sender for commit in commits), *self._waiters.sessions]
        self._waiters = Waiters()
        return [RejectWaiter(session, self._stopped) for session in sessions]

    def _skip(self, commits: list[ReceivedCommit]) -> list[Action]:
        """Answer commits that are not folded because of what is in them."""
        actions: list[Action] = []
        for commit in commits:
            norm = None if commit.measure is None else commit.measure.norm
            reply, due = self.ledger.skip(commit, commit.reason, norm)
            # The state that the worker has kept may hold what made this window what it is.
            self._checkpoint.states.clear(commit.sender.seat)
            self._snap(due)
            actions.append(self._begin_anew(commit, reply))
        return actions

    def _begin_anew(self, commit: ReceivedCommit, reply: CommitReply) -> SendReply:
        """Answer a commit that was skipped with the center, whatever the rule replies."""
        session, vector = commit.sender, commit.vector
        answer = self._answer_again(reply, session.seat)
        if self._rule.traits.steps_on_workers:
            return SendReply(session, answer)
        self.center.on_join(session.seat, vector)
        if not self._reply_has_vector:
            return SendReply(session, answer, vector, 4 * self._spec.size)
        return SendReply(session, answer, vector, self._encoder.encode(session.seat, vector))

    def _fold(self, commits: list[ReceivedCommit]) -> list[Action]:
        """Fold one commit or a whole round; return the answers to all senders."""
        infos = list(map(self.ledger.info, commits))
        try:
            if isinstance(self._rule, AsynchronousRule):
                self.center.fold(commits[0].vector, infos[0], commits[0].size)
            else:
                sizes = [commit.size or size_of(commit.vector) for commit in commits]
                self.center.aggregate([commit.vector for commit in commits], infos, sizes)
        except NonFiniteCenterError as error:
            return self._refuse(commits, error)
        if self._commit_filter is not None:
            self._commit_filter.update_statistics(commit.measure for commit in commits)
        if self._steps is not None:
            self._steps.add(commits[0].vector)
        self.ledger.version += 1
        counted = []
        for commit, info in zip(commits, infos, strict=True):
            size = self._encoder.encode(info.seat, commit.vector)
            counted.append((commit, self.ledger.count_folded(commit, info, size), size))
        self._snap(self.ledger.end_epochs())
        actions: list[Action] = []
        for commit, reply, size in counted:
            answer = reply
            if self._steps is not None:
                answer = self._steps.reply(commit.sender.seat, reply, first=not actions)
            if self._checkpoint.asks(commit.sender.seat):
                answer = replace(answer, keep=True)
            vector = commit.vector if self._reply_has_vector else None
            actions.append(SendReply(commit.sender, answer, vector, size))
        return actions

    def _refuse(self, commits: list[ReceivedCommit], error: NonFiniteCenterError) -> list[Action]:
        """Answer commits of which the center would become infinite."""
        if not self._spec.skips_nonfinite:
            return [RejectWaiter(commit.sender, error) for commit in commits]
        for commit in commits:
            commit.reason = str(error)
        return self._skip(commits)

    def _repeat(self, commit: ReceivedCommit, reply: CommitReply) -> list[Action]:
        """Answer a commit that is not folded with the current center."""
        if reply.skipped:
            return [self._begin_anew(commit, reply)]
        seat, vector = commit.sender.seat, commit.vector
        self.center.repeat(vector, seat)
        size = self._encoder.encode(seat, vector)
        answer = self._answer_again(reply, seat)
        sent = vector if self._reply_has_vector else None
        return [SendReply(commit.sender, answer, sent, size)]

    def _answer_again(self, reply: CommitReply, seat: int) -> CommitReply:
        """Complete the reply to a commit that is not folded; the one before it may be lost."""
        answer = replace(reply, keep=self._checkpoint.asks(seat))
        return answer if self._steps is None else self._steps.ask_again(seat, answer)

    def _step(self, event: ReceivedMessage[Any]) -> list[Action]:
        """Answer a worker that catches up with the steps of the others, or sends its weights."""
        self.members.current(event.sender)
        if self._stopped is not None:
            raise self._stopped
        if self._steps is None:
            raise RefusedError(
                f"Workers of the rule {self._rule.name!r} make no steps. Received: a request for "
                "steps or for an optimizer's state."
            )
        return [self._steps.answer(event)]

    # Snapshots

    def _snap(self, due: range) -> None:
        if not due or self._stopped is not None:
            return
        version = self.ledger.version
        if self._steps is None or self._steps.log.version == version:
            self._snapshots.take(due, self.center.vector)
        else:
            self._snapshots.wait_for(due, version)

    # The driver

    def _poll(self, event: ReceivedMessage[Poll]) -> list[Action]:
        message = event.message
        missing = self._snapshots.first_epoch_missing
        events, number = self.ledger.events, self._checkpoint.number
        if message.captured >= number:
            events.resume()
        waiting = {*self._waiters.round, *self._waiters.barrier}
        update = self.ledger.update(message.offset, missing, waiting)
        if message.offset + len(update.events) == events.stops_at:
            update = replace(update, captured=number)
        return [SendReply(DRIVER, update)]

    def _command(self, event: ReceivedMessage[Command]) -> list[Action]:
        message, before = event.message, self.ledger.learning_rate
        self.ledger.command(message.stop, message.learning_rate, message.epochs)
        if self._commit_filter is not None and self.ledger.learning_rate != before:
            self._commit_filter.forget_norms()
        if message.begin:
            self.members.started = True
        going = [*self._begin_epoch(), *self._open_gate()]
        return [SendReply(DRIVER, Done()), *going, *self._close_round()]

    def _fetch_center(self, event: ReceivedMessage[FetchCenter]) -> list[Action]:
        message = event.message
        if not 0 <= message.seat < self._spec.workers:
            raise RefusedError(
                f"The run has the workers 0 to {self._spec.workers - 1}. Received: worker "
                f"{message.seat}."
            )
        if message.snapshot is not None:
            center = self._snapshots.get(message.snapshot)
        else:
            center = self.center.of(message.seat).copy()
        return [SendReply(DRIVER, CenterReply(self.ledger.version), center, center.nbytes)]

    # Checkpoints

    def _begin_checkpoint(self, event: ReceivedMessage[BeginCheckpoint]) -> list[Action]:
        if self._stopped is not None:
            raise RefusedError(f"There is no center to save. Received: {self._stopped}")
        at_once = event.message.at_once or not self._checkpoint.active
        barrier = self._waiters.barrier
        waiting = [each for each in barrier.values() if isinstance(each.message, CommitReply)]
        # The others have just sent what they keep, or have not begun.
        silent = {seat for seat, each in barrier.items() if each not in waiting}
        self._checkpoint.begin([] if at_once else set(self.ledger.active_seats) - silent)
        return [
            SendReply(DRIVER, Done()),
            *(self._ask_at_barrier(each) for each in waiting if not at_once),
        ]

    def _ask_at_barrier(self, reply: SendReply) -> SendReply:
        """Ask a worker that waits at the end of an epoch for what it keeps."""
        message, seat = reply.message, reply.to.seat
        if isinstance(message, CommitReply):
            message = replace(message, keep=self._checkpoint.asks(seat))
        del self._waiters.barrier[seat]
        return dataclasses.replace(reply, message=message)

    @classmethod
    def resumed(
        cls, spec: RunSpec, parts: Sequence[NDArray[np.uint8]], spill: Spill = np.copy
    ) -> Self:
        """Build the core of a run that goes on from a checkpoint."""
        saved = SavedServer.from_bytes(parts[0])
        seats = seats_in_order(saved.worker_states)
        if len(parts) != 1 + len(seats):
            raise DataError(
                f"A checkpoint with the states of {len(seats)} workers is expected. Received: "
                f"{len(parts) - 1}."
            )
        if (saved.replay is not None) != rule_of(spec.rule).traits.steps_on_workers:
            raise DataError("The state of a parameter server is not that of this run's rule.")
        core = cls(spec, np.zeros(spec.size, np.float32), spill, saved)
        if core._commit_filter is not None and saved.outliers is not None:
            core._commit_filter.restore(saved.outliers)
        for seat, state in zip(seats, parts[1:], strict=True):
            saved_state = saved.worker_states[str(seat)]
            snapshot = WorkerStateSnapshot(saved_state.sequence, saved_state.version, state)
            core._checkpoint.states.restore(seat, snapshot)
        return core

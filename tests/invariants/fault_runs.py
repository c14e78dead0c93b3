"""Runs with a fault at a point, on the three cores alone: simulated time, and no I/O.

`FaultyRun` drives a `ServerCore`, one `WorkerCore` for each attempt and a `RunMonitor` from a queue
of events. An attempt does what a worker's client and its loop do. It is a generator that yields
what it waits for: seconds, or an answer. At each point it asks whether its fault strikes there.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re

import numpy as np

from distkeras_grid.errors import ClusterError, FencedError, RefusedError
from distkeras_grid.feeding.batches import policy_of
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.compression import DeltaDecoder
from distkeras_grid.parameter_server.gradient_log import STEPS_BETWEEN_STATES
from distkeras_grid.parameter_server.messages import (
    Command,
    CommitReply,
    FetchState,
    FetchStep,
    GetWorkerState,
    Heartbeat,
    Poll,
    PutOptimizerState,
    PutWorkerState,
    Ready,
    Resume,
    WindowCommit,
    WorkerEnd,
    WorkerError,
)
from distkeras_grid.parameter_server.retry_policy import MOST_FAILURES, RetryPolicy
from distkeras_grid.parameter_server.run_monitor import FailRun as WatchFails
from distkeras_grid.parameter_server.run_monitor import FinishRun as WatchFinishes
from distkeras_grid.parameter_server.run_monitor import (
    Restart,
    RunMonitor,
    StartRun,
    StatusUpdate,
    WindowTime,
)
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Disconnect,
    JoinRequest,
    ReceivedMessage,
    RejectWaiter,
    SeatGrant,
    SendReply,
)
from distkeras_grid.records import WindowRecord, WorkerRecord
from distkeras_grid.rules import AsynchronousRule, CommitInfo
from distkeras_grid.trainers.run import failure_of
from distkeras_grid.worker import worker_core as cores
from distkeras_grid.worker.engine_actions import apply_action, shared_state
from distkeras_grid.worker.loop import compute
from distkeras_grid.worker.seat import new_worker_core
from distkeras_grid.worker.worker_state import WorkerState
from tests.invariants.small_runs import EPOCHS, SIZE, WINDOWS, learner_of, terms_of, victim_of
from tests.specs import make_spec

#: Simulated seconds: limits of the run, and how long things take.
START, ROUND, STALL, KEEPALIVE = 300.0, 200.0, 60.0, 300.0
BEAT, LOOK, LATENCY, RESPAWN, SLOW = 10.0, 1.0, 0.05, 3.0, 40.0
#: No fault of one worker may hold a run up for longer than this.
LIMIT = MOST_FAILURES * (ROUND + START) + KEEPALIVE
#: The commit from which on faults in exchanges strike.
STRUCK_SEQUENCE = 2
WAIT = None


class Broken(Exception):
    """The connection is gone."""


class Gone(Exception):
    """The process is gone."""


class Attempt:
    """A worker's process: its core, its engine and its connection."""

    def __init__(self, run, seat, number, digest="rows"):
        self.run, self.seat, self.number, self.digest = run, seat, number, digest
        self.session, self.connected, self.notices_after = None, False, 0.0
        self.running = self.asking = self.over = self.stands_still = False
        self.activity, self.done, self.inbox, self.waits = "", 0, [], False
        self.engine = learner_of(run.rule, run.kind)
        self.first = self.engine.state()
        rng, self.share = np.random.default_rng(seat), run.spec.rows // run.workers
        rows = rng.normal(size=(self.share, SIZE)).astype(np.float32)
        self.rows = ArraySource([rows], [np.zeros(self.share)])
        policy = policy_of(run.spec.schedule, self.share, seat)
        self.core = new_worker_core(run.spec, run.rule, self.engine.layout, policy, seat)
        self.vector = np.empty(SIZE, np.float32)
        self.hearing = DeltaDecoder(run.spec.compression, self.vector)
        self.life = self._live()

    # -- the process ----------------------------------------------------------------------------

    def _live(self):
        try:
            yield from self._work()
        except Gone:
            self.run.died(self)
        except FencedError:
            # Nobody waits for it: Spark has another one.
            self.close()
        except RefusedError as error:
            # As the worker's task does: it would occur in another attempt, too.
            yield from self.ask(WorkerError(type(error).__name__, str(error)))
            self.run.died(self)
        self.over = True

    def _work(self):
        yield from self.at("hello")
        self._join()
        self.activity = "reading"
        yield 1.0
        yield from self.at("spool")
        self.activity = "warming up"
        yield 1.0 + (0.5 if self.seat == self.run.victim else 1.0)
        yield from self.at("warm-up")
        event = yield from self._ready()
        while True:
            *orders, wanted = self.core.handle(event)
            for order in orders:
                apply_action(order, self.engine, self.first)
            if isinstance(wanted, cores.FinishWorker):
                yield from self.ask(WorkerEnd(), before=["finish"])
                return
            try:
                event = yield from self._result(wanted)
            except RefusedError as refusal:
                event = cores.RejectionAnswer(refusal)

    def _ready(self):
        self.running = False
        ready = Ready(self.share, 1.0 + self.seat / 10, self.digest)
        answer = yield from self.ask(
            ready, during=["gate"], into=self.vector, vector=np.empty(SIZE, np.float32)
        )
        self.running, self.activity = True, "training"
        return cores.StartAnswer(answer.message, self.vector)

    def _result(self, wanted):
        match wanted:
            case cores.Compute(window):
                if window.window == 0 and window.epoch > 1:
                    self.activity = "reading"
                    yield from self.at("epoch end")
                    self.activity = "training"
                yield from self.at("window", window.sequence)
                yield 1.0 + self.seat / 10
                self.done += 1
                return compute(wanted, self.engine, self.rows.blocks(window.blocks))
            case cores.Exchange(commit, payload, reply):
                answer = yield from self._exchange(commit, payload, reply)
                return answer.message
            case cores.RequestStep(version, out):
                answer = yield from self.ask(FetchStep(version), after=["half a reply"], into=out)
                return answer.message
            case cores.RequestState():
                answer = yield from self.ask(FetchState())
                return cores.StateAnswer(answer.state)
            case cores.StoreOptimizerState(version, weights):
                yield from self._hand_over(version, weights)
                return cores.HandedOver()
            case cores.StoreWorkerState(sequence, version, before, offset, held):
                own = WorkerState(before, offset, held, dict(self.engine.state())).to_bytes()
                keep = PutWorkerState(sequence, version)
                answer = yield from self.ask(keep, before=["half of what it keeps"], state=own)
                return answer.message
            case cores.RestoreWorkerState():
                answer = yield from self.ask(GetWorkerState())
                kept = answer.message
                own = WorkerState.from_bytes(answer.state)
                return cores.RestoreAnswer(kept.sequence, kept.version, own)
            case cores.Reconnect():
                self._join()
                return (yield from self._ready())
        raise AssertionError(wanted)

    def _exchange(self, commit, payload, reply):
        """As `WorkerClient.exchange`: the reply may be received by half, and then again."""
        while True:
            try:
                answer = yield from self._ask_once(
                    commit,
                    before=["half a commit"],
                    after=["folded and no reply", "half a reply"],
                    into=reply,
                    vector=payload.copy(),
                )
            except Broken:
                yield from self._reconnect()
                continue
            if answer.vector is not None:
                self.hearing.decode(reply)
                if self.run.spec.compression:
                    # Of changes to what the worker knows comes the center of that moment.
                    np.testing.assert_array_equal(reply, self.run.replied[self.session])
            return answer

    def _hand_over(self, version, weights):
        state = shared_state(self.engine, version)
        while True:
            try:
                told = {"vector": weights, "state": state}
                yield from self._ask_once(PutOptimizerState(version), ["hand-over"], **told)
                return
            except Broken:
                yield from self._reconnect()

    # -- the connection -------------------------------------------------------------------------

    def _join(self):
        first, *rest = self.run.core.handle(JoinRequest(self.seat, self.number), self.run.now)
        assert isinstance(first, SeatGrant)
        self.session, self.connected, self.inbox = first.session, True, []
        self.run.sessions[self.session] = self
        self.run.do(rest)

    def _reconnect(self):
        while True:
            try:
                yield 0.5
                self._join()
                if self.running:
                    yield from self._ask_once(Resume())
                    self.hearing.reset()
                return
            except Broken:
                continue

    def ask(self, message, **how):
        while True:
            try:
                return (yield from self._ask_once(message, **how))
            except Broken:
                yield from self._reconnect()

    def _ask_once(self, message, before=(), during=(), after=(), into=None, **parts):
        sequence = message.sequence if isinstance(message, WindowCommit) else None
        for point in before:
            yield from self.at(point, sequence)
        yield from self._noticed()
        self.asking, self.inbox = True, []
        try:
            self.run.hear(self, message, **parts)
            for point in during:
                yield from self.at(point, sequence)
            yield from self._noticed()
            while not self.inbox:
                self.waits = True
                yield WAIT
            answer = self.inbox.pop(0)
            if isinstance(answer, Exception):
                raise answer
            for point in after:
                if point == "half a reply" and self.run.strikes_at(self, point, sequence):
                    self._take_half(answer, into)
                yield from self.at(point, sequence)
            yield from self._noticed()
        finally:
            self.asking = False
        if answer.vector is not None and into is not None:
            np.copyto(into, answer.vector)
        return answer

    def _take_half(self, answer, into):
        """Receive a part of a vector where the whole is due, as a socket does."""
        if answer.vector is not None:
            into[: SIZE // 2] = np.nan

    def _noticed(self):
        """Notice that the connection is gone, which takes longer if nobody says so."""
        if not self.connected:
            yield self.notices_after
            raise Broken

    def take(self, sent):
        if self.connected and not self.over:
            self.inbox.append(sent)
            if self.waits:
                self.waits = False
                self.run.later(LATENCY, self.go)

    def close(self):
        self.connected = False
        if self.session is not None:
            self.run.do(self.run.core.handle(Disconnect(self.session), self.run.now))

    def go(self):
        if self.over or self.stands_still:
            return
        pause = next(self.life, math.inf)
        if pause is not WAIT and pause < math.inf:
            self.run.later(pause, self.go)

    def beat(self):
        if self.over or self.stands_still:
            return
        self.run.later(BEAT, self.beat)
        if self.connected and not self.asking:
            try:
                self.run.hear(self, Heartbeat(self.activity, self.done, f"node-{self.seat}", ""))
            except FencedError:
                return
            self.inbox.clear()

    # -- faults ---------------------------------------------------------------------------------

    def at(self, point, sequence=None):
        """Suffer the fault of the run, if it strikes this attempt here."""
        if self.run.strikes_at(self, point, sequence):
            self.run.strikes += 1
            self.run.struck.add(self.seat)
            yield from getattr(self, f"_{FAULTS[self.run.fault]}")()

    def _killed(self):
        raise Gone
        yield

    def _stopped(self):
        self.stands_still = True
        yield math.inf

    def _half_open(self):
        """Packets vanish; the server's end learns of it much later."""
        self.connected, self.notices_after = False, STALL
        if self.session is not None:
            lost = Disconnect(self.session)
            run = self.run
            run.later(KEEPALIVE, lambda: run.do(run.core.handle(lost, run.now)))
        yield 0.0

    def _reset(self):
        self.notices_after = 0.1
        self.close()
        yield 0.0

    def _slow(self):
        yield SLOW

    def _twin(self):
        """Another attempt takes the seat, and this one goes on as if it were alone."""
        self.run.spawn(self.seat)
        yield 0.01


#: Each fault, and what an attempt suffers that it strikes. A worker whose disk is full ends by
#: itself, which is the same to the cores.
FAULTS = {
    "kill": "killed",
    "stop": "stopped",
    "cut half-open": "half_open",
    "reset": "reset",
    "slow": "slow",
    "zombie twin": "twin",
    "executor x5": "killed",
    "slot gone": "killed",
    "rows changed": "killed",
    "disk full": "killed",
}


class FaultyRun:
    """One run of a family with one fault at one point; without a point, nothing happens to it."""

    def __init__(self, family, kind, fault="kill", point=None):
        terms = terms_of(family, kind, start_timeout=START, round_timeout=ROUND)
        self.rule, self.workers = terms["rule"], terms["workers"]
        self.kind, self.fault, self.point = kind, fault, point
        self.victim = victim_of(point, self.workers)
        self.spec = make_spec(**terms)
        self.core = ServerCore(self.spec, np.ones(SIZE, np.float32))
        self.watch = RunMonitor(self.spec)
        self.now, self.queue, self.order = 0.0, [], itertools.count()
        self.sessions, self.attempts, self.numbers = {}, [], itertools.count()
        # The center as it was when the last commit of a session was answered.
        self.replied = {}
        self.strikes, self.struck, self.failures = 0, set(), [0] * self.workers
        self.retries, self.given_up = RetryPolicy(), {}
        self.sent, self.events, self.seen, self.restarted = {}, [], 0, []
        self.looked_at, self.wakes_at = -math.inf, math.inf
        self.center = self.error = None

    # -- time -----------------------------------------------------------------------------------

    def later(self, seconds, act):
        heapq.heappush(self.queue, (self.now + seconds, next(self.order), act))

    def go(self):
        """Run until there is a center or an error, and check what must hold then."""
        for seat in range(self.workers):
            self.spawn(seat)
        while self.center is None and self.error is None:
            assert self.queue, f"nothing is left to happen: {self.seats()}"
            self.now, _, act = heapq.heappop(self.queue)
            assert self.now < LIMIT, f"it hangs: {self.seats()}"
            act()
            if self.now - self.looked_at >= LOOK:
                self.look()
        self.check()
        return self

    def spawn(self, seat):
        changed = self.fault == "rows changed" and seat in self.struck
        attempt = Attempt(self, seat, next(self.numbers), "others" if changed else "rows")
        self.attempts.append(attempt)
        self.later(0.0, attempt.go)
        self.later(BEAT, attempt.beat)

    def died(self, attempt):
        """Let an attempt be gone, and Spark start another one as it would."""
        attempt.over = True
        attempt.close()
        seat = attempt.seat
        if self.fault == "slot gone" and seat in self.struck:
            return
        self.failures[seat] += 1
        folded = self.core.ledger.update(0).seats[seat].samples_folded
        gone = self.failures[seat] % MOST_FAILURES == 0
        if gone and not self.retries.allows(seat, folded, MOST_FAILURES):
            self.given_up[seat] = ClusterError("its process has died")
        else:
            self.later(RESPAWN, lambda: self.spawn(seat))

    def strikes_at(self, attempt, point, sequence=None):
        """Whether the fault strikes an attempt at this point, now."""
        most = 5 if self.fault == "executor x5" else 1
        if (attempt.seat, point) != (self.victim, self.point) or self.strikes >= most:
            return False
        return sequence is None or self.strikes > 0 or sequence >= STRUCK_SEQUENCE

    # -- the server -----------------------------------------------------------------------------

    def hear(self, attempt, message, **parts):
        if isinstance(message, WindowCommit):
            key = (attempt.seat, attempt.number, message.epoch, message.window)
            self.sent.setdefault(key, (message, parts["vector"].copy()))
        event = ReceivedMessage(attempt.session, message, **parts)
        self.do(self.core.handle(event, self.now))

    def do(self, actions):
        for action in actions:
            receiver = self.sessions.get(action.to) if action.to != DRIVER else None
            if receiver is None or receiver.session != action.to:
                continue
            if isinstance(action, RejectWaiter):
                receiver.take(action.error)
            elif isinstance(action, SendReply):
                copied = None if action.vector is None else action.vector.copy()
                if isinstance(action.message, CommitReply):
                    self.replied[action.to] = self.core.center.of(action.to.seat).copy()
                receiver.take(SendReply(action.to, action.message, copied, 0, action.state))
        self._check_memory()

    def _check_memory(self):
        core = self.core
        assert len(core._waiters.gate) <= self.workers
        assert len(core._waiters.round) <= self.workers
        assert len(core._checkpoint.states.all) <= self.workers
        assert len(core.ledger.events.events) <= 100
        if core._steps is not None:
            assert len(core._steps.log._steps) <= STEPS_BETWEEN_STATES + 1

    # -- the driver -----------------------------------------------------------------------------

    def look(self):
        self.looked_at = self.now
        (sent,) = self.core.handle(ReceivedMessage(DRIVER, Poll(self.seen)), self.now)
        update = sent.message
        self.seen += len(update.events)
        self.events += update.events
        for event in update.events:
            if isinstance(event, WorkerRecord) and event.window_seconds:
                self.act(self.watch.handle(WindowTime(event.worker, event.window_seconds), 0))
            if isinstance(event, WorkerRecord) and event.status == "failed":
                told = self.watch.describe(update.seats[event.worker], self.now)
                self.error = failure_of(event, told)
                return
        recorded = sum(window.samples for window in self.windows)
        looked = StatusUpdate(
            *(update.seats, update.version, update.samples_folded, recorded),
            final_errors=self.given_up,
        )
        self.act(self.watch.handle(looked, self.now))
        due = self.watch.deadline + 0.01
        if due < math.inf and not self.now < self.wakes_at <= due:
            self.wakes_at = due
            self.later(due - self.now, lambda: None)

    def act(self, actions):
        for action in actions:
            if isinstance(action, WatchFinishes):
                self.center = np.stack([self.core.center.of(n).copy() for n in range(self.workers)])
            elif isinstance(action, WatchFails):
                self.error = action.error
            elif isinstance(action, StartRun):
                self.do(
                    self.core.handle(
                        ReceivedMessage(DRIVER, Command(None, None, begin=True)), self.now
                    )
                )
            elif isinstance(action, Restart):
                self.restarted.append(action.worker)
                (attempt,) = (a for a in self.attempts if a.number == action.attempt)
                attempt.over = True
                attempt.close()
                # Spark kills the task and starts it again; that is no failure.
                self.later(RESPAWN, lambda seat=action.worker: self.spawn(seat))

    def seats(self):
        (sent,) = self.core.handle(ReceivedMessage(DRIVER, Poll(self.seen)), self.now)
        return sent.message.seats

    # -- what must hold -------------------------------------------------------------------------

    @property
    def windows(self):
        return [event for event in self.events if isinstance(event, WindowRecord)]

    def told(self, *statuses):
        found = (event for event in self.events if isinstance(event, WorkerRecord))
        return [event for event in found if event.status in statuses]

    def check(self):
        """Check all that must hold at the end of any run, however it has ended."""
        self._check_counted_once()
        self._check_center()
        self._check_blame()

    def _check_counted_once(self):
        found = [(window.worker, window.epoch, window.window) for window in self.windows]
        assert len(found) == len(set(found))
        if self.center is not None and self.spec.quorum_of(self.workers) == self.workers:
            each = itertools.product(range(self.workers), range(1, EPOCHS + 1), range(WINDOWS))
            assert set(found) == set(each)

    def replayed(self):
        """Fold, one after the other, what the folded windows' workers sent first."""
        center = Center(
            self.rule, np.ones(SIZE, np.float32), self.spec.layout.sections, self.workers
        )
        for version, windows in itertools.groupby(self.windows, lambda window: window.version):
            commits, infos = [], []
            for window in sorted(windows, key=lambda window: window.worker):
                key = (window.worker, window.attempt, window.epoch, window.window)
                commit, vector = self.sent[key]
                own = self.rule.traits.own_center
                stale = 0 if own else version - 1 - commit.version
                assert stale == window.staleness
                infos.append(CommitInfo(window.worker, commit.steps, commit.samples, stale))
                commits.append(vector.copy())
            if isinstance(self.rule, AsynchronousRule):
                ((vector,), (info,)) = commits, infos
                center.fold(vector, info)
            else:
                center.aggregate(commits, infos)
        return np.stack([center.of(seat) for seat in range(self.workers)])

    def _check_center(self):
        now = np.stack([self.core.center.of(seat) for seat in range(self.workers)])
        assert np.isfinite(now).all()
        if not self.rule.traits.steps_on_workers:
            # Of rounds whose steps the workers make, the server holds what they have handed over.
            np.testing.assert_array_equal(now, self.replayed())

    def _check_blame(self):
        assert set(self.restarted) <= self.struck
        blamed = {event.worker for event in self.told("lost", "failed", "fenced")}
        assert blamed <= self.struck
        if self.error is not None:
            named = re.findall(r"[Ww]orker (\d+)", str(self.error))
            assert {int(number) for number in named} == self.struck

    @property
    def exact(self):
        """Whether each attempt went on from all that the one before had.

        Workers with plain SGD and whole commits have nothing that the server has not.
        """
        continued = self.told("continued")
        return self.kind == "BatchNorm" or all(e.windows == e.state_windows for e in continued)

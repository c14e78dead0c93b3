"""The server's core against a model of a few lines, through anything that may happen to it.

Workers join, lose connections, resume, are replaced, send commits twice or wrong, and what they
keep; the driver has checkpoints taken; time passes; the core is saved and restored at any step and
must not notice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from distkeras_grid.array_tree import pack
from distkeras_grid.errors import (
    DataError,
    FencedError,
    OutlierError,
    RefusedError,
)
from distkeras_grid.outliers import CommitStatistics, RunningStatistics, outlier
from distkeras_grid.parameter_server.center_snapshots import IN_MEMORY
from distkeras_grid.parameter_server.compression import DeltaDecoder
from distkeras_grid.parameter_server.gradient_log import MOST_STEPS, STEPS_BETWEEN_STATES
from distkeras_grid.parameter_server.messages import (
    BeginCheckpoint,
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
    Poll,
    PutOptimizerState,
    PutWorkerState,
    Ready,
    Resume,
    Start,
    WindowCommit,
    WorkerEnd,
    WorkerError,
    WorkerStateReply,
)
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Disconnect,
    JoinRequest,
    ReceivedMessage,
    RejectWaiter,
)
from distkeras_grid.records import (
    LateRecord,
    SkippedRecord,
    WindowRecord,
    WorkerRecord,
)
from distkeras_grid.rules.finite_checks import size_of
from distkeras_grid.spec import Outliers
from distkeras_grid.weights import Variable
from tests.specs import make_spec

SEATS, ROWS, EPOCHS, SIZE, TIMEOUT = 3, 40, 3, 4, 30.0
#: Bytes of what a worker keeps, and of the optimizer's state that workers share.
BYTES = 8
VALUES = st.integers(-8, 8).map(lambda number: np.full(SIZE, number / 4, np.float32))
NUMBERS = st.integers(0, SEATS - 1)
CONTENTS = st.integers(0, 255)
#: What may be wrong with the numbers of a commit.
NOT_FINITE = [{"loss": math.nan}, {"loss": math.inf}, {"payload": math.nan}]


def idle(worker):
    """Whether a worker is at work and waits for no answer."""
    return worker.status == "running" and worker.waits is None


def state_of(content):
    return np.full(BYTES, content, np.uint8)


def commit_of(worker, **changes):
    """Return the next commit of a worker: each of its rows is a window."""
    epoch, window = divmod(worker.sequence, ROWS)
    told = {"sequence": worker.sequence, "version": worker.version, "window": window, "steps": 1}
    told |= {"epoch": 1 + epoch, "samples": 1, "loss": 0.5, "metrics": {}}
    return WindowCommit(**{**told, "started": 0, "seconds": 0, **changes})


class Spilled(np.ndarray):
    """A snapshot that a real server has on disk."""


@dataclass
class Worker:
    """What the model knows of one worker."""

    session: object = None
    attempt: int = -1
    status: str = "absent"
    started: int = -1
    sequence: int = 0
    version: int = 0
    folded: int = 0
    dropped: int = 0
    waits: object = None
    last: WindowCommit | None = None
    skipped: bool = False
    has_rows: bool = False
    stale: list = field(default_factory=list)
    #: Whether it was asked for what it keeps; the sequence, the version and the content of that.
    asked: bool = False
    kept: tuple | None = None
    #: Where the workers make the steps: the version of its weights, the optimizer's state that it
    #: was promised, and whether the server may have forgotten at which step it is.
    weights: int = 0
    promised: int | None = None
    detached: bool = False


@dataclass(frozen=True)
class Moment:
    """What the model knows of the moment of a checkpoint."""

    center: np.ndarray
    version: int
    sequences: tuple
    kept: dict
    #: Events that the driver is told until it has kept its own state.
    folds: list
    dropped: int
    skips: list
    failed: list
    steps: dict


class MindMachine(RuleBasedStateMachine):
    """Asynchronous: each commit is folded when it comes."""

    rule_name = "dynamic_rate"
    quorum = 1.0
    outliers = None
    on_nonfinite = "stop"
    #: Whether the center at the end of each epoch is kept until the driver has fetched it.
    snapshots = 0
    #: What else is different of the run.
    terms = {}  # noqa: RUF012

    @initialize(all_there=st.sampled_from([True, True, True, False]))
    def begin(self, all_there):
        self.spec = make_spec(
            workers=SEATS,
            rule=self.rule_name,
            trainable_size=SIZE,
            rows=SEATS * ROWS,
            epochs=EPOCHS,
            round_timeout=TIMEOUT,
            quorum=self.quorum,
            outliers=self.outliers,
            on_nonfinite=self.on_nonfinite,
            worker_state_limit=64,
            snapshots_per_epoch=self.snapshots,
            **self.terms,
        )
        spill = lambda center: center.copy().view(Spilled)  # noqa: E731
        self.core = ServerCore(self.spec, np.zeros(SIZE, np.float32), spill)
        self.workers = [Worker() for _ in range(SEATS)]
        self.center = np.zeros(SIZE, np.float32)
        self.version, self.now, self.open, self.stop = 0, 100.0, False, False
        self.round, self.folds, self.skips = {}, [], []
        # Whom a checkpoint waits for, who was asked for it, and the last one; the number of
        # checkpoints, and of those that the driver has kept its own state of.
        self.pending, self.awaited, self.asked = False, set(), set()
        self.moment, self.number, self.taken = None, 0, 0
        # The centers of the epochs that have ended, until they are fetched; who was refused.
        self.ended, self.made, self.failed = 0, {}, []
        # The newest that was fetched: the driver asks for none before it.
        self.passed = 0
        self.prepare()
        if all_there:
            for number in range(SEATS):
                self.join(number, newer=False)
            for number in range(SEATS):
                self.ready(number)

    def prepare(self):
        """Begin with what other machines know besides."""

    def has_finished(self, worker):
        """Whether a worker has no windows left, or the run does not wait for them any more."""
        return self.stop or worker.folded + worker.dropped >= ROWS * EPOCHS

    def quorum_of(self, workers):
        return math.ceil(round(self.quorum * workers, 6))

    # What the model does

    def fold(self, entries):
        """Fold ``(seat, commit, payload)``: by the staleness that the commit's version gives."""
        ((seat, commit, payload),) = entries
        staleness = self.version - commit.version
        self.version += 1
        self.center = self.center + payload / np.float32(staleness + 1)
        self.count(seat, commit, staleness)

    def count(self, seat, commit, staleness):
        worker = self.workers[seat]
        worker.sequence, worker.version = commit.sequence + 1, self.version
        worker.folded += commit.samples
        worker.last, worker.waits, worker.skipped = commit, None, False
        self.folds.append((seat, commit.epoch, commit.window, staleness, self.version))
        passed = sum(each.folded + each.dropped for each in self.workers)
        self.end_epochs(passed // (SEATS * ROWS))

    def end_epochs(self, passed):
        while self.ended < passed:
            self.ended += 1
            if self.snapshots and self.ended >= self.passed:
                self.made[self.ended] = self.center.copy()

    def take(self, seat, commit, payload):
        self.fold([(seat, commit, payload)])
        return [seat]

    # What both are told

    def say(self, session, message, vector=None, state=None):
        parts = {} if vector is None else {"vector": vector}
        event = ReceivedMessage(session, message, bytes_up=10, state=state, **parts)
        return self.core.handle(event, self.now)

    def those(self, data, condition):
        """Return one of the workers for which a condition holds; none ends the step."""
        found = [n for n, worker in enumerate(self.workers) if condition(worker)]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(number=NUMBERS, newer=st.booleans(), again=st.sampled_from([True, True, True, False]))
    def another_connection(self, number, newer, again):
        """Mostly it goes on at once, so that the run gets on as well."""
        self.join(number, newer)
        if again and self.workers[number].started == self.workers[number].attempt:
            self.resume_one(number)
        elif again:
            self.ready(number)

    def join(self, number, newer):
        worker = self.workers[number]
        attempt = max(0, worker.attempt) + newer
        first, *rest = self.core.handle(JoinRequest(number, attempt), self.now)
        # The same attempt may still answer what it was asked over another connection.
        worker.asked &= attempt == worker.attempt
        self.gone(number)
        if worker.session is not None:
            worker.stale.append(worker.session)
        worker.session, worker.attempt, worker.status = first.session, attempt, "joined"
        self.check_left(rest)

    def check_left(self, actions):
        """Nobody is answered because a worker has gone, but its own waits end."""
        assert all(isinstance(action, RejectWaiter) for action in actions)

    @precondition(lambda self: any(w.attempt > 0 for w in self.workers))
    @rule(number=NUMBERS)
    def join_as_an_older_attempt(self, number):
        if self.workers[number].attempt > 0:
            with pytest.raises(FencedError):
                self.core.handle(JoinRequest(number, self.workers[number].attempt - 1), self.now)

    @precondition(lambda self: self.any("joined"))
    @rule(data=st.data())
    def get_ready(self, data):
        self.ready(self.those(data, lambda worker: worker.status == "joined"))

    def any(self, status):
        return any(w.status == status and w.waits is None for w in self.workers)

    def ready(self, number):
        worker = self.workers[number]
        actions = self.say(worker.session, Ready(ROWS, 0.1), np.empty(SIZE, np.float32))
        worker.status, worker.waits, worker.has_rows = "ready", "start", True
        there = [w for w in self.workers if w.status in ("ready", "running", "finished")]
        self.open = self.open or len(there) == SEATS
        going = [w for w in self.workers if w.waits == "start"] if self.open else []
        assert len(actions) == len(going)
        for action in actions:
            assert self.workers[action.to.seat].session == action.to
            self.check_start(action)

    def check_start(self, action):
        started = self.workers[action.to.seat]
        assert isinstance(action.message, Start)
        np.testing.assert_array_equal(action.vector, self.center)
        self.greeted(action)
        assert action.message.next_sequence == started.sequence
        assert action.message.has_worker_state == (started.kept is not None)
        started.status, started.waits, started.version = "running", None, self.version
        started.started = started.attempt

    def greeted(self, action):
        """Do what follows from a start in other machines."""

    def heard(self, action):
        """Return the vector that a worker has after a reply."""
        return action.vector

    @precondition(lambda self: self.any("joined"))
    @rule(data=st.data(), rows=st.sampled_from([ROWS - 1, ROWS + 1, 2 * ROWS, SEATS * ROWS]))
    def get_ready_with_rows_of_others(self, data, rows):
        """Only the one who says so is refused, and named."""
        number = self.those(data, lambda worker: worker.status == "joined")
        others = sum(w.has_rows for n, w in enumerate(self.workers) if n != number)
        if rows < ROWS and not (self.workers[number].has_rows or others == SEATS - 1):
            return
        with pytest.raises(RefusedError):
            self.say(self.workers[number].session, Ready(rows, 0.1), np.empty(SIZE, np.float32))
        self.failed.append(number)

    @precondition(lambda self: self.any("joined"))
    @rule(data=st.data())
    def resume(self, data):
        self.resume_one(self.those(data, lambda worker: worker.status == "joined"))

    def resume_one(self, number):
        worker = self.workers[number]
        if worker.started != worker.attempt:
            with pytest.raises(RefusedError):
                self.say(worker.session, Resume())
            return
        (action,) = self.say(worker.session, Resume())
        assert action.message == Done()
        worker.status = "running"

    @precondition(lambda self: self.any("running"))
    @rule(
        data=st.data(), sent=st.lists(st.tuples(VALUES, st.integers(1, 9)), min_size=1, max_size=5)
    )
    def commit(self, data, sent):
        for payload, samples in sent:
            number = self.those(data, idle)
            if number is not None:
                self.commit_one(number, payload, samples)

    def commit_one(self, number, payload, samples, loss=0.5):
        worker = self.workers[number]
        left = ROWS * EPOCHS - worker.folded - worker.dropped
        if left < 1:
            return
        sent = commit_of(worker, samples=min(samples, left), loss=loss)
        vector = payload.copy()
        actions = self.say(worker.session, sent, vector)
        answered = self.take(number, sent, payload)
        self.check_answers(actions, answered)

    def check_answers(self, actions, answered):
        assert sorted(a.to.seat for a in actions) == sorted(answered)
        for action in actions:
            assert isinstance(action.message, CommitReply)
            assert action.to == self.workers[action.to.seat].session
            assert action.message.version == self.version
            assert not action.message.state_wanted
            np.testing.assert_array_equal(self.heard(action), self.center)
            self.check_asks(action)

    def check_asks(self, action):
        """A reply asks whom a checkpoint waits for; who is through is asked for nothing."""
        seat, asks = action.to.seat, action.message.keep
        worker = self.workers[seat]
        if self.has_finished(worker):
            assert not asks
        elif seat in self.awaited:
            assert asks
            self.asked.add(seat)
        worker.asked |= asks

    @precondition(lambda self: self.any("running"))
    @rule(data=st.data(), payload=VALUES)
    def commit_again(self, data, payload):
        """The reply was lost: what was folded is answered by the center as it is."""
        worker = self.workers[self.those(data, idle)]
        if worker.last is None:
            return
        (action,) = self.say(worker.session, worker.last, payload.copy())
        np.testing.assert_array_equal(self.heard(action), self.center)
        assert action.message.skipped == worker.skipped
        worker.version = action.message.version
        self.check_asks(action)

    @precondition(lambda self: self.any("running"))
    @rule(
        data=st.data(),
        change=st.sampled_from(
            [
                {"sequence": 1},
                {"version": 10**6},
                {"samples": 0},
                {"samples": 2**62},
                {"samples": ROWS + 1},
                {"steps": 10},
                *NOT_FINITE,
                {"epoch": 0},
                {"epoch": EPOCHS + 1},
                {"epoch": 2**52},
                {"window": ROWS},
                {"window": 2**52},
            ]
        ),
    )
    def commit_what_is_wrong(self, data, change):
        worker = self.workers[self.those(data, idle)]
        if self.on_nonfinite == "skip" and change in NOT_FINITE:
            return
        told = dict(change)
        payload = told.pop("payload", 1)
        for name in {"sequence", "version"} & told.keys():
            told[name] += getattr(worker, name)
        with pytest.raises(RefusedError):
            self.say(worker.session, commit_of(worker, **told), np.full(SIZE, payload, np.float32))

    @rule(number=NUMBERS)
    def an_old_connection_speaks(self, number):
        for session in self.workers[number].stale:
            for message in (
                WorkerEnd(),
                WorkerError("ValueError", "old"),
                Resume(),
                Ready(ROWS, 0.1),
            ):
                with pytest.raises(FencedError):
                    self.say(session, message, np.zeros(SIZE, np.float32))
            # Its end takes nothing from the newer one.
            assert self.core.handle(Disconnect(session), self.now) == []

    @rule(number=NUMBERS)
    def lose(self, number):
        self.lose_one(number)

    def lose_one(self, number):
        worker = self.workers[number]
        if worker.session is None or worker.status == "finished":
            return
        actions = self.core.handle(Disconnect(worker.session), self.now)
        self.gone(number)
        # Its connection is gone: it says no more until it joins again.
        worker.session, worker.status = None, "lost"
        self.broke(number)
        self.check_left(actions)

    def broke(self, number):
        """Do what follows from a lost connection in other machines."""

    def finished(self, number):
        """Do what follows from a worker's end in other machines."""

    def gone(self, number):
        self.workers[number].waits = None
        self.round.pop(number, None)
        self.answers_no_more(number)

    @precondition(lambda self: self.any("running") and len(self.folds) > 4)
    @rule(data=st.data())
    def finish(self, data):
        number = self.those(data, idle)
        worker = self.workers[number]
        actions = self.say(worker.session, WorkerEnd())
        worker.status, worker.asked, worker.kept = "finished", False, None
        finished = sum(w.status == "finished" for w in self.workers)
        if not self.stop and finished >= self.quorum_of(SEATS):
            self.stop = True
            self.end_epochs(EPOCHS)
        self.finished(number)
        self.answers_no_more(number)
        assert actions[0].to == worker.session
        self.check_finish(actions[1:])

    def check_finish(self, rest):
        for action in rest:
            self.check_start(action)

    # What workers keep, and checkpoints

    @precondition(lambda self: self.any("running"))
    @rule(data=st.data(), content=CONTENTS)
    def keep(self, data, content):
        number = self.those(data, idle)
        worker = self.workers[number]
        told = (worker.sequence, worker.version, content)
        # A second time, too: the answer may have been lost.
        if not worker.asked and (worker.kept is None or worker.kept[0] != worker.sequence):
            with pytest.raises(RefusedError):
                self.say(worker.session, PutWorkerState(*told[:2]), state=state_of(content))
            return
        (answer,) = self.say(worker.session, PutWorkerState(*told[:2]), state=state_of(content))
        assert (answer.to, type(answer.message)) == (worker.session, GoOn)
        worker.kept, worker.asked = told, False
        if number in self.asked:
            self.awaited.discard(number)
        self.capture()

    @precondition(lambda self: self.any("running"))
    @rule(data=st.data(), change=st.sampled_from([(1, 0), (0, 10**6)]))
    def keep_what_is_wrong(self, data, change):
        worker = self.workers[self.those(data, idle)]
        sent = PutWorkerState(worker.sequence + change[0], worker.version + change[1])
        with pytest.raises(RefusedError):
            self.say(worker.session, sent, state=state_of(0))

    @rule(number=NUMBERS)
    def fetch_kept(self, number):
        worker = self.workers[number]
        if worker.session is not None:
            self.check_kept(self.core, worker.session, worker.kept)

    def check_kept(self, core, session, kept):
        """What was kept comes back, also to another attempt, as it was sent."""
        event = ReceivedMessage(session, GetWorkerState())
        if kept is None:
            with pytest.raises(RefusedError):
                core.handle(event, self.now)
            return
        (answer,) = core.handle(event, self.now)
        assert (answer.to, answer.message) == (session, WorkerStateReply(*kept[:2]))
        np.testing.assert_array_equal(answer.state, state_of(kept[2]))

    @rule(at_once=st.booleans())
    def gather(self, at_once):
        (answer,) = self.say(DRIVER, BeginCheckpoint(at_once))
        assert answer.message == Done()
        active_seats = {
            n
            for n, w in enumerate(self.workers)
            if w.status == "running" and not self.has_finished(w)
        }
        self.pending, self.awaited, self.asked = True, set() if at_once else active_seats, set()
        self.capture()

    def answers_no_more(self, number):
        self.awaited.discard(number)
        self.capture()

    def capture(self):
        """Take the model's state with the last answer."""
        if not self.pending or self.awaited:
            return
        self.pending, self.number = False, self.number + 1
        self.moment = Moment(
            self.center.copy(),
            self.version,
            tuple(worker.sequence for worker in self.workers),
            {n: w.kept for n, w in enumerate(self.workers) if w.kept is not None},
            list(self.folds),
            sum(worker.dropped for worker in self.workers),
            list(self.skips),
            list(self.failed),
            self.steps_now(),
        )

    def steps_now(self):
        """Return what else a server goes on from."""
        return {}

    @rule(takes=st.booleans())
    def fetch_checkpoint(self, takes):
        """Another server goes on from its parts, with the state of that one moment."""
        wrong = [(self.number + 1, 0)]
        if self.moment is None:
            wrong.append((self.number, 0))
        else:
            wrong.append((self.number, 1 + len(self.moment.kept)))
            self.check_goes_on(self.parts())
            self.taken = self.number if takes else self.taken
        for number, part in wrong:
            with pytest.raises(RefusedError):
                self.say(DRIVER, FetchPart(number, part))

    def parts(self):
        (first,) = self.say(DRIVER, FetchPart(self.number, 0))
        assert first.message.parts == 1 + len(self.moment.kept)
        others = [
            self.say(DRIVER, FetchPart(self.number, part))[0].state
            for part in range(1, first.message.parts)
        ]
        return [pack(first.tree), *others]

    def check_goes_on(self, parts):
        """Let all workers of the checkpoint join another server, and compare what they are told."""
        core, moment = ServerCore.resumed(self.spec, parts), self.moment
        (told,) = core.handle(ReceivedMessage(DRIVER, FetchCenter(None, 0)), self.now)
        assert told.message.version == moment.version
        sessions = [core.handle(JoinRequest(n, 0), self.now)[0].session for n in range(SEATS)]
        answers = []
        for session in sessions:
            ready = ReceivedMessage(session, Ready(ROWS, 0.1), np.empty(SIZE, np.float32))
            answers += core.handle(ready, self.now)
        assert sorted(answer.to.seat for answer in answers) == list(range(SEATS))
        for answer in answers:
            seat = answer.to.seat
            np.testing.assert_array_equal(answer.vector, moment.center)
            assert answer.message.next_sequence == moment.sequences[seat]
            assert answer.message.has_worker_state == (seat in moment.kept)
            self.check_kept(core, answer.to, moment.kept.get(seat))
        return core, answers

    @rule(seconds=st.floats(0.1, 2 * TIMEOUT))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(data=st.data(), done=st.integers(0, 9))
    def beat(self, data, done):
        """A sign of life changes nothing but what the driver is told of the seat."""
        number = self.those(data, lambda w: w.waits is None and w.status in ("joined", "running"))
        if number is None:
            return
        session = self.workers[number].session
        (answer,) = self.say(session, Heartbeat("training", done, "host", ""))
        assert answer.to == session
        told = self.say(DRIVER, Poll(0))[0].message.seats[number]
        assert (told.attempt, told.done) == (self.workers[number].attempt, done)

    @precondition(lambda self: not self.open and self.any("running") is False)
    @rule(lot=st.sampled_from([True, False, False, False]))
    def begin_without_the_missing(self, lot):
        if not lot or not any(w.waits == "start" for w in self.workers):
            return
        self.open = True
        actions = self.say(DRIVER, Command(None, None, begin=True))[1:]
        assert len(actions) == sum(w.waits == "start" for w in self.workers)
        for action in actions:
            self.check_start(action)

    # What always holds

    @invariant()
    def center_is_the_sequential_replay(self):
        (action,) = self.say(DRIVER, FetchCenter(None, 0))
        np.testing.assert_array_equal(action.vector, self.center)
        assert np.isfinite(action.vector).all()
        assert action.message.version == self.version

    @invariant()
    def each_fold_is_counted_once(self):
        (action,) = self.say(DRIVER, Poll(0, self.taken))
        events = action.message.events
        due = self.number > self.taken
        assert action.message.captured == (self.number if due else 0)
        # Until the driver has kept its own state it is told nothing of what came after.
        folds, skips = (self.moment.folds, self.moment.skips) if due else (self.folds, self.skips)
        dropped = self.moment.dropped if due else sum(w.dropped for w in self.workers)
        told = [
            (e.worker, e.epoch, e.window, e.staleness, e.version)
            for e in events
            if isinstance(e, WindowRecord)
        ]
        assert told == folds
        assert len({fold[0:3] for fold in told}) == len(told)
        assert action.message.samples_folded == sum(w.folded for w in self.workers)
        aside = [e.samples for e in events if isinstance(e, LateRecord | SkippedRecord)]
        assert sum(aside) == dropped
        skipped = [(e.worker, e.window) for e in events if isinstance(e, SkippedRecord)]
        assert skipped == skips

    @invariant()
    def nobody_innocent_is_blamed(self):
        (action,) = self.say(DRIVER, Poll(0))
        failed = [
            e.worker
            for e in action.message.events
            if isinstance(e, WorkerRecord) and e.status == "failed"
        ]
        # What came after a checkpoint is held back.
        assert failed == (self.moment.failed if self.number > self.taken else self.failed)

    @invariant()
    def memory_is_bounded(self):
        assert len(vectors_in(self.core)) <= self.most_vectors

    #: The center, one for whoever waits, and what each worker keeps; in a checkpoint again.
    most_vectors = 1 + SEATS + SEATS + 1 + SEATS


class SnapshotMachine(MindMachine):
    """The center at the end of each epoch is kept until the driver asks for a later one."""

    snapshots = 1
    most_vectors = MindMachine.most_vectors + IN_MEMORY

    @precondition(lambda self: self.any("running"))
    @rule(payload=VALUES)
    def commit_many_samples(self, payload):
        for number, worker in enumerate(self.workers):
            if idle(worker):
                self.commit_one(number, payload, ROWS)

    @invariant()
    def all_but_a_few_snapshots_are_spilled(self):
        made = self.core._snapshots._made.values()
        assert sum(not isinstance(each, Spilled) for each in made) <= IN_MEMORY

    @rule(number=st.integers(0, EPOCHS + 1))
    def fetch_snapshot(self, number):
        """It is there until the driver asks for a later one; those before it are dropped."""
        self.passed = max(self.passed, number)
        self.made = {n: center for n, center in self.made.items() if n >= self.passed}
        for _ in range(2):
            if number not in self.made:
                with pytest.raises(RefusedError):
                    self.say(DRIVER, FetchCenter(number, 0))
                return
            (answer,) = self.say(DRIVER, FetchCenter(number, 0))
            np.testing.assert_array_equal(answer.vector, self.made[number])


class CompressedMachine(MindMachine):
    """A reply has what has changed since the center that its worker knows."""

    terms = {"compression": "dgc"}  # noqa: RUF012
    #: Also the center that each seat knows.
    most_vectors = MindMachine.most_vectors + SEATS

    def prepare(self):
        self.hearing = {}

    def greeted(self, action):
        self.hearing[action.to.seat] = DeltaDecoder("dgc", action.vector.copy())

    def heard(self, action):
        vector = action.vector.copy()
        self.hearing[action.to.seat].decode(vector)
        return vector

    def resume_one(self, number):
        super().resume_one(number)
        if self.workers[number].status == "running":
            self.hearing[number].reset()


class RoundMachine(MindMachine):
    """Synchronous: commits wait for their round, of which a quorum is enough."""

    rule_name = "averaging"
    quorum = 0.6

    def fold(self, entries):
        """Replace the center by the mean."""
        self.center = self.mean(entries)
        self.version += 1
        for seat, commit, _ in entries:
            self.count(seat, commit, 0)

    def mean(self, entries):
        """Return the mean of what was sent, weighted by samples."""
        first, total = entries[0][2], sum(commit.samples for _, commit, _ in entries)
        mean = first.copy()
        for _, commit, payload in entries[1:]:
            mean += (payload - first) * np.float32(commit.samples / total)
        return mean

    def take(self, seat, commit, payload):
        worker = self.workers[seat]
        if commit.version < self.version:
            worker.sequence, worker.version = commit.sequence + 1, self.version
            worker.dropped += commit.samples
            worker.last, worker.skipped = commit, False
            return [seat]
        self.round[seat] = (seat, commit, payload)
        worker.waits = "round"
        return self.close()

    def close(self):
        could = [n for n, w in enumerate(self.workers) if w.status != "finished" or n in self.round]
        finished = sum(w.status == "finished" for w in self.workers)
        due = self.quorum_of(SEATS) - finished
        if not self.round or len(self.round) < max(1, min(self.quorum_of(len(could)), due)):
            return []
        entries = [self.round[seat] for seat in sorted(self.round)]
        self.round = {}
        self.fold(entries)
        return [seat for seat, *_ in entries]

    def check_finish(self, rest):
        starts = [a for a in rest if isinstance(a.message, Start)]
        super().check_finish(starts)
        self.check_answers([a for a in rest if a not in starts], self.close())


class StepsMachine(RoundMachine):
    """Rounds of gradients: the center stays where it was handed over last, and steps are kept."""

    rule_name = "mean_gradient"
    terms = {"state": (Variable("v", (BYTES,), "uint8"),)}  # noqa: RUF012
    #: Also the steps and the optimizer's state, and what is promised to each seat.
    most_vectors = 1 + SEATS + SEATS + MOST_STEPS + 1 + SEATS + (1 + SEATS + MOST_STEPS + 1)

    def prepare(self):
        # The version of the center, the state beside it, and the steps since.
        self.base, self.state, self.steps = 0, None, {}
        # Who was asked for weights and state, and whether the next reply asks.
        self.wanted, self.due = set(), False
        # Whose commit has missed its round, and is asked again.
        self.again = set()

    def take(self, seat, commit, payload):
        self.again = {seat} & self.wanted if commit.version < self.version else set()
        return super().take(seat, commit, payload)

    def fold(self, entries):
        self.steps[self.version] = self.mean(entries)
        self.version += 1
        self.due = self.version - self.base >= STEPS_BETWEEN_STATES
        for seat, commit, _ in entries:
            self.count(seat, commit, 0)

    def check_start(self, action):
        super().check_start(action)
        start, worker = action.message, self.workers[action.to.seat]
        assert (start.version, start.has_state) == (self.base, self.state is not None)
        worker.weights, worker.promised, worker.detached = self.base, self.state, False
        self.wanted.discard(action.to.seat)

    def check_answers(self, actions, answered):
        assert sorted(a.to.seat for a in actions) == sorted(answered)
        asked = {a.to.seat for a in actions if a.message.state_wanted}
        # It is enough if one of a round hands over.
        assert self.again <= asked
        assert len(asked) == self.due + len(self.again)
        self.due, self.again = False, set()
        for action in actions:
            assert action.message.version == self.version
            assert action.message.state_version == self.base
            assert action.vector is None
            self.wanted |= {action.to.seat} if action.message.state_wanted else set()
            self.check_asks(action)

    @precondition(lambda self: self.any("running"))
    @rule(data=st.data(), payload=VALUES)
    def commit_again(self, data, payload):
        number = self.those(data, idle)
        worker = self.workers[number]
        if worker.last is None:
            return
        (action,) = self.say(worker.session, worker.last, payload.copy())
        worker.version = action.message.version
        assert action.message.state_wanted == (number in self.wanted)
        self.check_asks(action)

    @precondition(lambda self: self.any("running"))
    @rule(rounds=st.integers(1, 8), payload=VALUES)
    def several_rounds(self, rounds, payload):
        for _ in range(rounds):
            for number, worker in enumerate(self.workers):
                if idle(worker):
                    self.commit_one(number, payload, 1)

    def broke(self, number):
        self.workers[number].detached = True

    def finished(self, number):
        # If it comes again, though, nothing is kept for it.
        self.workers[number].promised, self.workers[number].detached = None, True

    # Steps and states

    @precondition(lambda self: self.any("running"))
    @rule(data=st.data())
    def fetch_step(self, data):
        self.step_one(self.workers[self.those(data, idle)])

    def step_one(self, worker):
        """Fetch the step that a worker is due; return whether it is kept."""
        try:
            (answer,) = self.say(worker.session, FetchStep(worker.weights))
        except RefusedError:
            behind = self.version - worker.weights
            assert behind == 0 or behind > MOST_STEPS or worker.detached
            return False
        np.testing.assert_array_equal(answer.vector, self.steps[worker.weights])
        worker.weights += 1
        worker.promised, worker.detached = None, False
        return True

    @rule(number=NUMBERS)
    def fetch_state(self, number):
        worker = self.workers[number]
        if worker.session is None:
            return
        if worker.promised is None:
            with pytest.raises(RefusedError):
                self.say(worker.session, FetchState())
            return
        (answer,) = self.say(worker.session, FetchState())
        np.testing.assert_array_equal(answer.state, state_of(worker.promised))

    def one_to_hand_over(self, data):
        """Return a worker, mostly one that was asked."""
        asked = [n for n in self.wanted if idle(self.workers[n])]
        return data.draw(st.sampled_from(asked)) if asked else self.those(data, idle)

    @precondition(lambda self: self.any("running"))
    @rule(data=st.data(), content=CONTENTS, twice=st.booleans())
    def hand_over(self, data, content, twice):
        """After the steps up to now."""
        number = self.one_to_hand_over(data)
        worker = self.workers[number]
        while worker.weights < self.version:
            if not self.step_one(worker):
                return
        sent = PutOptimizerState(worker.weights)
        parts = {"vector": self.weights_of(worker.weights), "state": state_of(content)}
        if (
            worker.weights > self.base
            and number not in self.wanted
            and not self.has_finished(worker)
        ):
            with pytest.raises(RefusedError):
                self.say(worker.session, sent, **parts)
            return
        for _ in range(1 + twice):
            (answer,) = self.say(worker.session, sent, **parts)
            assert (answer.to, answer.message) == (worker.session, Done())
            if worker.weights > self.base:
                self.base, self.state = worker.weights, content
                self.center = self.weights_of(self.base)
                self.wanted.discard(number)
        # The next message of this connection is received into it.
        parts["vector"][:] = 77

    def weights_of(self, version):
        return np.full(SIZE, version / 4, np.float32)

    @precondition(lambda self: self.any("running"))
    @rule(data=st.data(), how=st.sampled_from(["newer", "not finite", "alone", "short"]))
    def hand_over_what_is_wrong(self, data, how):
        worker = self.workers[self.one_to_hand_over(data)]
        version = self.version + (how == "newer")
        weights, state = self.weights_of(version), state_of(1)
        parts = {
            "newer": {"vector": weights, "state": state},
            "not finite": {"vector": np.full(SIZE, np.nan, np.float32), "state": state},
            "alone": {"vector": weights},
            "short": {"vector": weights, "state": state[1:]},
        }[how]
        with pytest.raises(RefusedError):
            self.say(worker.session, PutOptimizerState(version), **parts)

    # Checkpoints

    def steps_now(self):
        return {"base": self.base, "state": self.state, "steps": dict(self.steps)}

    def check_goes_on(self, parts):
        moment, told = self.moment, self.moment.steps
        if moment.version - told["base"] > MOST_STEPS:
            # Of the workers that were asked, none has handed over for so long: see `step_one`.
            with pytest.raises(DataError, match="replay"):
                ServerCore.resumed(self.spec, parts)
            return
        core, answers = super().check_goes_on(parts)
        session, start = answers[0].to, answers[0].message
        assert (start.version, start.has_state) == (told["base"], told["state"] is not None)
        if start.has_state:
            (answer,) = core.handle(ReceivedMessage(session, FetchState()), self.now)
            np.testing.assert_array_equal(answer.state, state_of(told["state"]))
        for version in range(start.version, moment.version):
            (step,) = core.handle(ReceivedMessage(session, FetchStep(version)), self.now)
            np.testing.assert_array_equal(step.vector, told["steps"][version])


class Judged:
    """Commits are judged: those that are too large, or not finite, are answered and not folded."""

    outliers = Outliers()
    on_nonfinite = "skip"

    @precondition(lambda self: self.any("running"))
    @rule(
        data=st.data(),
        payload=VALUES,
        scale=st.sampled_from([1, 1000, math.nan]),
        loss=st.sampled_from([0.5, 0.7, 600.0, math.nan, math.inf]),
    )
    def commit_what_is_poisoned(self, data, payload, scale, loss):
        number = self.those(data, idle)
        if number is not None:
            self.commit_one(number, payload * np.float32(scale), 1, loss)

    def prepare(self):
        self.seen = RunningStatistics()

    def find(self, entries):
        """Return which of some commits are folded, and which are skipped."""
        finite = [e for e in entries if np.isfinite(e[2]).all() and math.isfinite(e[1].loss)]
        measures = [CommitStatistics(c.loss, self.norm(p), 0.0) for _, c, p in finite]
        found = [outlier(each, measures, self.seen, self.outliers.factor) for each in measures]
        taken = [e for e, reason in zip(finite, found, strict=True) if not reason]
        for measure, reason in zip(measures, found, strict=True):
            if not reason:
                self.seen.add(measure)
        return taken, [e for e in entries if not any(e is other for other in taken)]

    def norm(self, payload):
        return math.sqrt(np.dot(payload, payload))

    def skip(self, entries):
        for seat, commit, _ in entries:
            worker = self.workers[seat]
            worker.sequence, worker.version = commit.sequence + 1, self.version
            worker.dropped += commit.samples
            worker.last, worker.waits, worker.skipped = commit, None, True
            # What it keeps may hold what has spoiled the window.
            worker.asked, worker.kept = False, None
            self.skips.append((seat, commit.window))

    def check_skips(self, actions):
        for action in actions:
            assert action.message.skipped == self.workers[action.to.seat].skipped

    @invariant()
    def what_is_skipped_is_not_in_the_center(self):
        assert np.isfinite(self.center).all()
        assert self.core.ledger.version == self.version


class JudgedMachine(Judged, MindMachine):
    """Asynchronous: each commit is compared with those before it."""

    def take(self, seat, commit, payload):
        taken, skipped = self.find([(seat, commit, payload)])
        self.answers = {}
        for entry in taken:
            self.fold([entry])
            self.answers[entry[0]] = (self.version, self.center)
        self.skip(skipped)
        self.answers |= {seat: (self.version, self.center) for seat, *_ in skipped}
        return [seat]

    def check_answers(self, actions, answered):
        assert sorted(a.to.seat for a in actions) == sorted(answered)
        for action in actions:
            version, center = self.answers[action.to.seat]
            assert action.to == self.workers[action.to.seat].session
            assert action.message.version == version
            np.testing.assert_array_equal(action.vector, center)
            self.check_asks(action)
        self.check_skips(actions)


class JudgedRounds(Judged, RoundMachine):
    """Synchronous: what is skipped has come all the same, so no round waits for another commit."""

    def take(self, seat, commit, payload):
        if commit.version < self.version and not (
            np.isfinite(payload).all() and math.isfinite(commit.loss)
        ):
            self.skip([(seat, commit, payload)])
            return [seat]
        return super().take(seat, commit, payload)

    def fold(self, entries):
        taken, skipped = self.find(entries)
        if taken:
            super().fold(taken)
        self.skip(skipped)

    def norm(self, payload):
        change = payload - self.center
        return math.sqrt(np.dot(change, change))

    def check_answers(self, actions, answered):
        super().check_answers(actions, answered)
        self.check_skips(actions)


LONG = settings(
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def quick_and_long(machine):
    """Return a machine's test with a few examples, and one with many for the complete tests."""
    quick, more = (
        type(machine.__name__, (machine.TestCase,), {"settings": settings(LONG, max_examples=most)})
        for most in (12, 100)
    )
    return quick, pytest.mark.full(more)


TestDynamicRate, TestMoreDynamicRate = quick_and_long(MindMachine)
TestSnapshots, TestMoreSnapshots = quick_and_long(SnapshotMachine)
TestCompressed, TestMoreCompressed = quick_and_long(CompressedMachine)
TestRounds, TestMoreRounds = quick_and_long(RoundMachine)
TestSteps, TestMoreSteps = quick_and_long(StepsMachine)
TestJudged, TestMoreJudged = quick_and_long(JudgedMachine)
TestJudgedRounds, TestMoreJudgedRounds = quick_and_long(JudgedRounds)


def vectors_in(core):
    """Return the vectors and states that a core holds, but for what is spilled."""
    center, (saved, states) = core.center, core._checkpoint._captured or ({}, [])
    held = [*core._waiters.gate, *core._waiters.round.values(), *core._waiters.barrier.values()]
    replay = core._steps and core._steps.log
    steps = [] if replay is None else [step.gradient for step in replay._steps.values()]
    promised = [] if replay is None else [*replay._promised.values(), replay.state]
    found = [
        *(*center._centers, *center._shared, *(each for own in center._own for each in own)),
        *(*core._snapshots._made.values(), *core._encoder._known.values()),
        *(*steps, *promised, *(each.vector for each in held)),
        *(*(kept.state for kept in core._checkpoint.states.all.values()), *states),
        *arrays_of(saved),
    ]
    return [each for each in found if each is not None and not isinstance(each, Spilled)]


def arrays_of(tree):
    if isinstance(tree, np.ndarray):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [array for part in parts for array in arrays_of(part)]


def started(core, workers=2, rows=ROWS):
    """Let all workers of a core start; returns their sessions."""
    sessions = [core.handle(JoinRequest(n, 0), 0.0)[0].session for n in range(workers)]
    for session in sessions:
        core.handle(ReceivedMessage(session, Ready(rows, 0.1), np.empty(SIZE, np.float32)), 0.0)
    return sessions


def test_what_a_worker_tells_with_a_sign_of_life_is_its_attempts():
    spec = make_spec(workers=2, rule="averaging", trainable_size=SIZE, rows=2 * ROWS)
    core = ServerCore(spec, np.zeros(SIZE, np.float32))
    first, _ = started(core)

    def seat():
        return core.handle(ReceivedMessage(DRIVER, Poll(0)), 0.0)[0].message.seats[0]

    core.handle(ReceivedMessage(first, Heartbeat("training", 7, "node-3", "/logs/3")), 0.0)
    told = seat()
    assert (told.activity, told.done, told.heartbeats) == ("training", 7, 1)
    assert (told.host, told.log) == ("node-3", "/logs/3")
    commit = WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0, 0)
    core.handle(ReceivedMessage(first, commit, np.ones(SIZE, np.float32)), 1.0)
    assert seat().activity == "waiting"
    core.handle(JoinRequest(0, 1), 2.0)
    told = seat()
    assert (told.attempt, told.activity, told.heartbeats, told.host) == (1, "", 0, "")


def judged(rule="downpour", workers=2, outliers=None, on_nonfinite="stop", **terms):
    spec = make_spec(
        workers=workers,
        rule=rule,
        trainable_size=SIZE,
        rows=workers * ROWS,
        outliers=outliers,
        on_nonfinite=on_nonfinite,
        **terms,
    )
    return spec, ServerCore(spec, np.ones(SIZE, np.float32))


def send(core, session, sequence, value, loss=0.5, version=0):
    vector = np.full(SIZE, value, np.float32)
    commit = WindowCommit(sequence, version, 1, sequence, 1, 1, loss, {}, 0, 0)
    event = ReceivedMessage(session, commit, vector, 10, size_of(vector))
    return core.handle(event, 1.0)


def events(core, kind):
    (told,) = core.handle(ReceivedMessage(DRIVER, Poll(0)), 0.0)
    return [event for event in told.message.events if isinstance(event, kind)]


@pytest.mark.parametrize("name", ["elastic", "sequential", "member", "averaging", "distance"])
def test_the_answer_to_a_skipped_commit_is_the_center_also_the_second_time(name):
    """Workers with weights of their own would keep them, and send them again."""
    parameters = {"elastic": {"alpha": 0.5}}.get(name, {})
    rule = {"name": name, "parameters": parameters}
    _, core = judged(rule, workers=1, on_nonfinite="skip")
    (session,) = started(core, 1)
    for _ in range(2):
        (reply,) = send(core, session, 0, np.nan)
        assert reply.message.skipped
        np.testing.assert_array_equal(reply.vector, np.ones(SIZE))
    (skip,) = events(core, SkippedRecord)
    assert (skip.worker, skip.epoch, skip.window, skip.samples, skip.norm) == (0, 1, 0, 1, None)
    (reply,) = send(core, session, 1, 2)
    assert not reply.message.skipped


def test_a_poisoned_worker_is_named_with_its_host():
    _, core = judged(outliers=Outliers())
    first, second = started(core)
    core.handle(ReceivedMessage(second, Heartbeat("training", 1, "node-7", "")), 0.0)
    replies = [*send(core, first, 0, 0.5), *send(core, second, 0, 1e6)]
    assert [(reply.to, reply.message.skipped) for reply in replies] == [
        (first, False),
        (second, True),
    ]
    (skip,) = events(core, SkippedRecord)
    assert (skip.worker, skip.host, skip.norm) == (1, "node-7", pytest.approx(2e6))
    np.testing.assert_array_equal(core.center.vector, np.full(SIZE, 1.5))


@pytest.mark.parametrize("poisoned", range(3))
def test_an_outlier_that_stops_a_round_is_named_whoever_came_last_and_all_are_told(poisoned):
    _, core = judged("averaging", outliers=Outliers(on_outlier="stop"), workers=3)
    sessions, told = started(core, 3), []
    for seat, session in enumerate(sessions):
        told += send(core, session, 0, 1e6 if seat == poisoned else 0.5)
    assert {each.to: type(each.error) for each in told} == dict.fromkeys(sessions, OutlierError)
    assert len(told) == 3
    (failed,) = (event for event in events(core, WorkerRecord) if event.status == "failed")
    assert (failed.worker, failed.error) == (poisoned, "OutlierError")


def test_nobody_goes_on_in_a_run_that_an_outlier_has_stopped_and_its_center_can_be_had():
    _, core = judged(outliers=Outliers(on_outlier="stop"), worker_state_limit=64)
    first, second = started(core)
    send(core, first, 0, 0.5)
    core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=False)), 1.0)
    (dismissed,) = send(core, second, 0, 1e6)
    assert (dismissed.to, type(dismissed.error)) == (second, OutlierError)
    with pytest.raises(OutlierError, match="Worker 1, epoch 1, window 0"):
        send(core, first, 0, 0.5)
    newer = core.handle(JoinRequest(0, 1), 1.0)[0].session
    with pytest.raises(OutlierError):
        core.handle(ReceivedMessage(newer, Ready(ROWS, 0.1), np.empty(SIZE, np.float32)), 1.0)
    with pytest.raises(RefusedError):
        core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=True)), 1.0)
    assert core.handle(ReceivedMessage(second, WorkerEnd()), 1.0)[0].message == Done()
    # Not even the checkpoint that waited for the workers before.
    assert not core.handle(ReceivedMessage(DRIVER, Poll(0)), 1.0)[0].message.captured
    # Nothing of the outlier is in it, so the user may have it.
    (told,) = core.handle(ReceivedMessage(DRIVER, FetchCenter(None, 0)), 1.0)
    np.testing.assert_array_equal(told.vector, np.full(SIZE, 1.5))
    (failed,) = (event for event in events(core, WorkerRecord) if event.status == "failed")
    assert (failed.worker, failed.error) == (1, "OutlierError")


@pytest.mark.parametrize("rule", ["downpour", "averaging"])
def test_a_window_that_the_users_function_is_against_is_skipped(rule):
    _, core = judged(rule)
    first, second = started(core)
    commit = WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0, 0, reason="too far")
    vector = np.full(SIZE, 7, np.float32)
    replies = [
        *core.handle(ReceivedMessage(second, commit, vector, 10, size_of(vector)), 1.0),
        *send(core, first, 0, 0.5),
    ]
    assert {reply.to: reply.message.skipped for reply in replies} == {first: False, second: True}
    (skip,) = events(core, SkippedRecord)
    assert (skip.worker, skip.reason, skip.norm) == (1, "too far", None)
    expected = 0.5 if rule == "averaging" else 1.5
    np.testing.assert_array_equal(core.center.vector, np.full(SIZE, expected))


def test_a_learning_rate_that_is_set_begins_the_comparison_anew():
    _, core = judged(outliers=Outliers(), workers=1)
    (session,) = started(core, 1)
    send(core, session, 0, 0.01)
    core.handle(ReceivedMessage(DRIVER, Command(None, 0.5)), 1.0)
    (reply,) = send(core, session, 1, 5.0, version=1)
    assert not reply.message.skipped


def test_a_center_that_would_overflow_skips_the_commit_where_nothing_is_to_stop():
    _, core = judged(workers=1, on_nonfinite="skip")
    (session,) = started(core, 1)
    send(core, session, 0, 3e38)
    (reply,) = send(core, session, 1, 3e38, version=1)
    assert reply.message.skipped
    assert np.isfinite(core.center.vector).all()


@pytest.mark.parametrize("last", [0.5, np.nan])
def test_an_epoch_that_ends_with_a_dropped_window_has_its_snapshot(last):
    _, core = judged("averaging", quorum=0.5, on_nonfinite="skip", epochs=2, snapshots_per_epoch=1)
    first, second = started(core)
    for sequence in range(ROWS):
        send(core, first, sequence, 0.5, version=sequence)
    # The rounds of this worker have closed without it.
    for sequence in range(ROWS):
        send(core, second, sequence, last)
    (told,) = core.handle(ReceivedMessage(DRIVER, FetchCenter(1, 0)), 1.0)
    np.testing.assert_array_equal(told.vector, np.full(SIZE, 0.5))


def test_a_checkpoint_has_what_was_seen():
    """A server that goes on finds at once what its predecessor would have found."""
    spec, core = judged(outliers=Outliers(), workers=1)
    (session,) = started(core, 1)
    for sequence in range(3):
        send(core, session, sequence, 1, version=sequence)
    core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=True)), 1.0)
    (part,) = core.handle(ReceivedMessage(DRIVER, FetchPart(1, 0)), 1.0)
    again = ServerCore.resumed(spec, [pack(part.tree)])
    (session,) = started(again, 1)
    (large,) = send(again, session, 3, 1e6, version=3)
    assert large.message.skipped
    assert len(events(again, SkippedRecord)) == 1


def test_members_that_begin_with_weights_of_their_own_are_no_outliers():
    _, core = judged("member", outliers=Outliers(), own_start=True)
    first, second = started(core)
    send(core, first, 0, 1.001)
    (reply,) = send(core, second, 0, 9.0)
    assert not reply.message.skipped
    (reply,) = send(core, second, 1, 9.5, version=1)
    assert reply.message.skipped

"""The server's mind against a model of a few lines, through anything that may happen to it.

Workers join, lose connections, resume, are replaced, send commits twice or wrong; time passes; the
mind is saved and restored at any step and must not notice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from distkeras_grid.errors import FencedError, OutlierError, RefusedError
from distkeras_grid.judges import Measure, Outliers, Seen, judge_spec
from distkeras_grid.parameter_server.messages import (
    Beat,
    Command,
    Exchanged,
    Fail,
    FetchCenter,
    FetchPart,
    Finish,
    Gather,
    Poll,
    Ready,
    Resume,
    Resumed,
    Start,
    WindowCommit,
)
from distkeras_grid.parameter_server.mind import (
    DRIVER,
    Dismiss,
    Join,
    Lost,
    Received,
    Send,
    ServerMind,
)
from distkeras_grid.records import LateRecord, SkippedRecord, WindowRecord, WorkerRecord
from distkeras_grid.rules.magnitudes import size_of
from distkeras_grid.simulation.saved_state import read, write
from distkeras_grid.trees import pack
from tests.specs import make_spec

SEATS, ROWS, EPOCHS, SIZE, TIMEOUT = 3, 40, 3, 4, 30.0
VALUES = st.integers(-8, 8).map(lambda number: np.full(SIZE, number / 4, np.float32))
NUMBERS = st.integers(0, SEATS - 1)


def idle(worker):
    """Whether a worker is at work and waits for no answer."""
    return worker.status == "running" and worker.waits is None


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
    stale: list = field(default_factory=list)


class MindMachine(RuleBasedStateMachine):
    """Asynchronous: each commit is folded when it comes."""

    rule_name = "dynamic_rate"
    quorum = 1.0
    judge = None
    on_nonfinite = "stop"

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
            judge=judge_spec(self.judge),
            on_nonfinite=self.on_nonfinite,
        )
        self.mind = ServerMind(self.spec, np.zeros(SIZE, np.float32))
        self.workers = [Worker() for _ in range(SEATS)]
        self.center = np.zeros(SIZE, np.float32)
        self.version, self.now, self.open = 0, 100.0, False
        self.round, self.folds, self.skips = {}, [], []
        if all_there:
            for number in range(SEATS):
                self.join(number, newer=False)
            for number in range(SEATS):
                self.ready(number)

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

    def take(self, seat, commit, payload):
        self.fold([(seat, commit, payload)])
        return [seat]

    # What both are told

    def say(self, session, message, vector=None):
        size = None if vector is None else size_of(vector)
        return self.mind.handle(Received(session, message, vector, 10, size), self.now)

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
        first, *rest = self.mind.handle(Join(number, attempt), self.now)
        self.gone(number)
        if worker.session is not None:
            worker.stale.append(worker.session)
        worker.session, worker.attempt, worker.status = first.session, attempt, "joined"
        self.check_left(rest)

    def check_left(self, actions):
        """Nobody is answered because a worker has gone, but its own waits end."""
        assert all(isinstance(action, Dismiss) for action in actions)

    @precondition(lambda self: any(w.attempt > 0 for w in self.workers))
    @rule(number=NUMBERS)
    def join_as_an_older_attempt(self, number):
        if self.workers[number].attempt > 0:
            with pytest.raises(FencedError):
                self.mind.handle(Join(number, self.workers[number].attempt - 1), self.now)

    @precondition(lambda self: self.any("joined"))
    @rule(data=st.data())
    def get_ready(self, data):
        self.ready(self.those(data, lambda worker: worker.status == "joined"))

    def any(self, status):
        return any(w.status == status and w.waits is None for w in self.workers)

    def ready(self, number):
        worker = self.workers[number]
        actions = self.say(worker.session, Ready(ROWS, 0.1), np.empty(SIZE, np.float32))
        worker.status, worker.waits = "ready", "start"
        there = [w for w in self.workers if w.status in ("ready", "running", "finished")]
        self.open = self.open or len(there) == SEATS
        going = [w for w in self.workers if w.waits == "start"] if self.open else []
        assert len(actions) == len(going)
        for action in actions:
            started = self.workers[action.to.seat]
            assert isinstance(action.message, Start)
            assert started.session == action.to
            np.testing.assert_array_equal(action.vector, self.center)
            assert action.message.next_sequence == started.sequence
            started.status, started.waits, started.version = "running", None, self.version
            started.started = started.attempt

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
        assert isinstance(action.message, Resumed)
        assert action.message.next_sequence == worker.sequence
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
        sent = WindowCommit(
            worker.sequence,
            worker.version,
            1,
            worker.sequence,
            1,
            min(samples, left),
            loss,
            {},
            0,
            0,
        )
        vector = payload.copy()
        actions = self.say(worker.session, sent, vector)
        answered = self.take(number, sent, payload)
        self.check_answers(actions, answered)

    def check_answers(self, actions, answered):
        assert sorted(a.to.seat for a in actions) == sorted(answered)
        for action in actions:
            assert isinstance(action.message, Exchanged)
            assert action.to == self.workers[action.to.seat].session
            assert action.message.version == self.version
            assert not action.message.state_wanted
            np.testing.assert_array_equal(action.vector, self.center)

    @precondition(lambda self: self.any("running"))
    @rule(data=st.data(), payload=VALUES)
    def commit_again(self, data, payload):
        """The reply was lost: what was folded is answered by the center as it is."""
        worker = self.workers[self.those(data, idle)]
        if worker.last is None:
            return
        (action,) = self.say(worker.session, worker.last, payload.copy())
        np.testing.assert_array_equal(action.vector, self.center)
        assert action.message.skipped == worker.skipped
        worker.version = action.message.version

    @precondition(lambda self: self.any("running"))
    @rule(
        data=st.data(),
        change=st.sampled_from(
            [
                {"sequence": 1},
                {"version": 10**6},
                {"samples": 0},
                {"samples": 2**62},
                {"steps": 10},
                {"loss": math.nan},
                {"loss": math.inf},
                {"payload": math.nan},
            ]
        ),
    )
    def commit_what_is_wrong(self, data, change):
        worker = self.workers[self.those(data, idle)]
        if self.on_nonfinite == "skip" and not all(map(math.isfinite, change.values())):
            return
        told = {"sequence": 0, "version": 0, "samples": 1, "steps": 1, "loss": 0.5} | change
        sent = WindowCommit(
            worker.sequence + told["sequence"],
            worker.version + told["version"],
            *(1, worker.sequence, told["steps"], told["samples"], told["loss"], {}, 0, 0),
        )
        with pytest.raises(RefusedError):
            self.say(worker.session, sent, np.full(SIZE, change.get("payload", 1), np.float32))

    @rule(number=NUMBERS)
    def an_old_connection_speaks(self, number):
        for session in self.workers[number].stale:
            for message in (Finish(), Fail("ValueError", "old"), Resume(), Ready(ROWS, 0.1)):
                with pytest.raises(FencedError):
                    self.say(session, message, np.zeros(SIZE, np.float32))

    @rule(number=NUMBERS)
    def lose(self, number):
        worker = self.workers[number]
        if worker.session is None or worker.status == "finished":
            return
        actions = self.mind.handle(Lost(worker.session), self.now)
        self.gone(number)
        # Its connection is gone: it says no more until it joins again.
        worker.session, worker.status = None, "lost"
        self.check_left(actions)

    def gone(self, number):
        self.workers[number].waits = None
        self.round.pop(number, None)

    @precondition(lambda self: self.any("running") and len(self.folds) > 4)
    @rule(data=st.data())
    def finish(self, data):
        worker = self.workers[self.those(data, idle)]
        actions = self.say(worker.session, Finish())
        worker.status = "finished"
        assert actions[0].to == worker.session
        self.check_finish(actions[1:])

    def check_finish(self, rest):
        assert all(isinstance(a.message, Start) for a in rest)
        for action in rest:
            started = self.workers[action.to.seat]
            started.status, started.waits, started.version = "running", None, self.version
            started.started = started.attempt

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
        (answer,) = self.say(session, Beat("training", done, "host", ""))
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
            started = self.workers[action.to.seat]
            started.status, started.waits, started.version = "running", None, self.version
            started.started = started.attempt

    @rule()
    def save_and_restore(self):
        before = self.mind.to_state()
        self.mind = ServerMind.from_state(self.spec, before)
        assert_same(self.mind.to_state(), before)

    # What always holds

    @invariant()
    def center_is_the_sequential_replay(self):
        (action,) = self.say(DRIVER, FetchCenter(None, 0))
        np.testing.assert_array_equal(action.vector, self.center)
        assert np.isfinite(action.vector).all()
        assert action.message.version == self.version

    @invariant()
    def each_fold_is_counted_once(self):
        (action,) = self.say(DRIVER, Poll(0))
        events = action.message.events
        told = [
            (e.worker, e.epoch, e.window, e.staleness, e.version)
            for e in events
            if isinstance(e, WindowRecord)
        ]
        assert told == self.folds
        assert len({fold[0:3] for fold in told}) == len(told)
        assert action.message.samples_folded == sum(w.folded for w in self.workers)
        aside = [e.samples for e in events if isinstance(e, LateRecord | SkippedRecord)]
        assert sum(aside) == sum(w.dropped for w in self.workers)
        skipped = [(e.worker, e.window) for e in events if isinstance(e, SkippedRecord)]
        assert skipped == self.skips

    @invariant()
    def nobody_innocent_is_blamed(self):
        (action,) = self.say(DRIVER, Poll(0))
        failed = [
            e.worker
            for e in action.message.events
            if isinstance(e, WorkerRecord) and e.status == "failed"
        ]
        assert failed == []

    @invariant()
    def memory_is_bounded(self):
        assert vectors_in(self.mind.to_state()) <= self.most_vectors

    #: The center, and one for whoever waits.
    most_vectors = 1 + SEATS


class RoundMachine(MindMachine):
    """Synchronous: commits wait for their round, of which a quorum is enough."""

    rule_name = "averaging"
    quorum = 0.6

    def fold(self, entries):
        """Replace the center by the mean, weighted by samples."""
        first, total = entries[0][2], sum(commit.samples for _, commit, _ in entries)
        self.center = first.copy()
        for _, commit, payload in entries[1:]:
            self.center += (payload - first) * np.float32(commit.samples / total)
        self.version += 1
        for seat, commit, _ in entries:
            self.count(seat, commit, 0)

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

    def quorum_of(self, workers):
        return math.ceil(round(self.quorum * workers, 6))

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
    most_vectors = 1 + SEATS + 32

    def fold(self, entries):
        self.version += 1
        for seat, commit, _ in entries:
            self.count(seat, commit, 0)

    def check_answers(self, actions, answered):
        assert sorted(a.to.seat for a in actions) == sorted(answered)
        for action in actions:
            assert action.message.version == self.version
            assert action.vector is None

    @precondition(lambda self: self.any("running"))
    @rule(data=st.data(), payload=VALUES)
    def commit_again(self, data, payload):
        worker = self.workers[self.those(data, idle)]
        if worker.last is None:
            return
        (action,) = self.say(worker.session, worker.last, payload.copy())
        worker.version = action.message.version


class Judged:
    """Commits are judged: those that are too large, or not finite, are answered and not folded."""

    judge = Outliers()
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

    @initialize()
    def nothing_seen(self):
        self.seen = Seen()

    def find(self, entries):
        """Return which of some commits are folded, and which are skipped."""
        finite = [e for e in entries if np.isfinite(e[2]).all() and math.isfinite(e[1].loss)]
        measures = [Measure(c.loss, self.norm(p), 0.0) for _, c, p in finite]
        found = self.judge.find(measures, self.seen) if finite else []
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
            self.skips.append((seat, commit.window))

    def check_skips(self, actions):
        for action in actions:
            assert action.message.skipped == self.workers[action.to.seat].skipped

    @invariant()
    def what_is_skipped_is_not_in_the_center(self):
        assert np.isfinite(self.center).all()
        assert self.mind.books.version == self.version


class JudgedMachine(Judged, MindMachine):
    """Asynchronous: the first commits of all who are at work wait for each other."""

    def take(self, seat, commit, payload):
        entry = (seat, commit, payload)
        if self.seen.recent:
            return self.settle([entry])
        self.round[seat] = entry
        self.workers[seat].waits = "others"
        return self.release()

    def release(self):
        """Settle the first commits, if nobody at work is still to send one."""
        due = ROWS * EPOCHS
        at_work = [
            n
            for n, w in enumerate(self.workers)
            if w.status == "running" and w.folded + w.dropped < due
        ]
        if not self.round or set(at_work) - set(self.round):
            return []
        entries = [self.round[seat] for seat in sorted(self.round)]
        self.round = {}
        return self.settle(entries)

    def settle(self, entries):
        taken, skipped = self.find(entries)
        self.answers = {}
        for entry in taken:
            self.fold([entry])
            self.answers[entry[0]] = (self.version, self.center)
        self.skip(skipped)
        self.answers |= {seat: (self.version, self.center) for seat, *_ in skipped}
        return [seat for seat, *_ in entries]

    def check_answers(self, actions, answered):
        assert sorted(a.to.seat for a in actions) == sorted(answered)
        for action in actions:
            version, center = self.answers[action.to.seat]
            assert action.to == self.workers[action.to.seat].session
            assert action.message.version == version
            np.testing.assert_array_equal(action.vector, center)
        self.check_skips(actions)

    def check_left(self, actions):
        sent = [action for action in actions if isinstance(action, Send)]
        self.check_answers(sent, self.release())

    def check_finish(self, rest):
        super().check_finish([a for a in rest if isinstance(a.message, Start)])
        self.check_left([a for a in rest if not isinstance(a.message, Start)])


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


def vectors_in(tree):
    if isinstance(tree, np.ndarray):
        return 1
    if isinstance(tree, dict):
        return sum(map(vectors_in, tree.values()))
    return sum(map(vectors_in, tree)) if isinstance(tree, list) else 0


def assert_same(one, other):
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, part in one.items():
            assert_same(part, other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for part, counterpart in zip(one, other, strict=True):
            assert_same(part, counterpart)
    else:
        # A loss may be NaN, which equals nothing.
        assert one == other or repr(one) == repr(other) == "nan"


LONG = settings(
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestDynamicRate = MindMachine.TestCase
TestDynamicRate.settings = LONG
TestRounds = RoundMachine.TestCase
TestRounds.settings = LONG
TestSteps = pytest.mark.slow(StepsMachine.TestCase)
TestSteps.settings = LONG
TestJudged = pytest.mark.slow(JudgedMachine.TestCase)
TestJudged.settings = LONG
TestJudgedRounds = pytest.mark.slow(JudgedRounds.TestCase)
TestJudgedRounds.settings = LONG


def started(mind, workers=2, rows=ROWS):
    """Let all workers of a mind start; returns their sessions."""
    sessions = [mind.handle(Join(n, 0), 0.0)[0].session for n in range(workers)]
    for session in sessions:
        mind.handle(Received(session, Ready(rows, 0.1), np.empty(SIZE, np.float32)), 0.0)
    return sessions


def test_a_saved_mind_is_a_file_and_goes_on(tmp_path):
    spec = make_spec(
        workers=2, rule="distance", trainable_size=SIZE, rows=2 * ROWS, compression="dgc"
    )
    mind = ServerMind(spec, np.ones(SIZE, np.float32))
    sessions = started(mind)
    commits = [WindowCommit(n, n, 1, n, 1, 1, 0.5, {"a": 0.5}, 0, 0) for n in range(3)]
    mind.handle(Received(sessions[0], commits[0], np.full(SIZE, 2, np.float32)), 1.0)
    write(tmp_path / "mind", mind.to_state())
    other = ServerMind.from_state(spec, read(tmp_path / "mind"))
    for one in (mind, other):
        (sent,) = one.handle(Received(sessions[0], commits[1], np.full(SIZE, 3, np.float32)), 2.0)
        assert isinstance(sent, Send)
    assert_same(other.to_state(), mind.to_state())


def test_presence_is_counted_where_a_worker_waits():
    """At the start of all workers, in a round of those that its quorum waits for."""
    spec = make_spec(workers=4, rule="averaging", trainable_size=SIZE, rows=4 * ROWS, quorum=0.75)
    mind = ServerMind(spec, np.zeros(SIZE, np.float32))
    sessions = [mind.handle(Join(n, 0), 0.0)[0].session for n in range(4)]
    for present, session in enumerate(sessions, 1):
        mind.handle(Received(session, Ready(ROWS, 0.1), np.empty(SIZE, np.float32)), 0.0)
        assert mind.presence(session) == (present, 4)
    for present, session in enumerate(sessions[:2], 1):
        commit = WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0, 0)
        assert mind.handle(Received(session, commit, np.ones(SIZE, np.float32)), 1.0) == []
        assert mind.presence(session) == (present, 3)


def test_a_run_that_begins_without_a_worker_takes_it_when_it_comes():
    spec = make_spec(workers=3, trainable_size=SIZE, rows=3 * ROWS)
    mind = ServerMind(spec, np.zeros(SIZE, np.float32))

    def come(seat):
        session = mind.handle(Join(seat, 0), 0.0)[0].session
        ready = Received(session, Ready(ROWS, 0.1), np.empty(SIZE, np.float32))
        return mind.handle(ready, 0.0)

    assert come(0) == come(1) == []
    answer, *starts = mind.handle(Received(DRIVER, Command(None, None, begin=True)), 1.0)
    assert answer.to == DRIVER
    assert [(s.to.seat, type(s.message)) for s in starts] == [(0, Start), (1, Start)]
    (late,) = come(2)
    assert isinstance(late.message, Start)


def test_what_a_worker_tells_with_a_sign_of_life_is_its_attempts():
    spec = make_spec(workers=2, rule="averaging", trainable_size=SIZE, rows=2 * ROWS)
    mind = ServerMind(spec, np.zeros(SIZE, np.float32))
    first, _ = started(mind)

    def seat(moment=0):
        told = mind.handle(Received(DRIVER, Poll(0, moment=moment)), 0.0)[0].message
        return next((s for s in told.seats if s.worker == 0), None), told.moment

    mind.handle(Received(first, Beat("training", 7, "node-3", "/logs/3")), 0.0)
    told, moment = seat()
    assert (told.doing, told.done, told.beats) == ("training", 7, 1)
    assert (told.host, told.log) == ("node-3", "/logs/3")
    # A driver that knows this is told nothing again, until something changes.
    assert seat(moment) == (None, moment)
    commit = WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0, 0)
    mind.handle(Received(first, commit, np.ones(SIZE, np.float32)), 1.0)
    assert seat(moment)[0].doing == "waiting"
    mind.handle(Join(0, 1), 2.0)
    told, _ = seat(moment)
    assert (told.attempt, told.doing, told.beats, told.host) == (1, "", 0, "")


def test_the_last_ones_of_a_quorum_do_not_wait_for_who_never_comes_back():
    spec = make_spec(workers=5, rule="averaging", trainable_size=SIZE, rows=5 * ROWS, quorum=0.8)
    mind = ServerMind(spec, np.zeros(SIZE, np.float32))
    sessions = started(mind, 5)
    mind.handle(Lost(sessions[4]), 1.0)
    for session in sessions[:3]:
        mind.handle(Received(session, Finish()), 1.0)
    commit = WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0, 0)
    (reply,) = mind.handle(Received(sessions[3], commit, np.ones(SIZE, np.float32)), 1.0)
    assert isinstance(reply.message, Exchanged)


def test_the_end_of_an_old_connection_takes_nothing_from_the_newer_one():
    """Neither its place at the start nor its commit in a round."""
    spec = make_spec(workers=2, rule="averaging", trainable_size=SIZE, rows=2 * ROWS)
    mind = ServerMind(spec, np.zeros(SIZE, np.float32))

    def join():
        return mind.handle(Join(0, 0), 0.0)[0].session

    def ready(session):
        return mind.handle(Received(session, Ready(ROWS, 0.1), np.empty(SIZE, np.float32)), 0.0)

    def commit(session, sequence):
        sent = WindowCommit(sequence, 0, 1, 0, 1, 1, 0.5, {}, 0, 0)
        return mind.handle(Received(session, sent, np.ones(SIZE, np.float32)), 0.0)

    old, newer = join(), join()
    assert ready(newer) == []
    assert mind.handle(Lost(old), 0.0) == []
    second = mind.handle(Join(1, 0), 0.0)[0].session
    assert [action.to for action in ready(second)] == [newer, second]
    newest = join()
    mind.handle(Received(newest, Resume()), 0.0)
    assert commit(newest, 0) == []
    assert mind.handle(Lost(newer), 0.0) == []
    assert mind.presence(newest) == (1, 2)
    assert [action.to for action in commit(second, 0)] == [newest, second]


def test_a_snapshot_is_the_center_at_the_commit_that_makes_it_due():
    spec = make_spec(workers=2, trainable_size=SIZE, rows=8, epochs=1, snapshots_per_epoch=2)
    mind = ServerMind(spec, np.zeros(SIZE, np.float32))
    sessions = started(mind, rows=4)
    for number in range(4):
        sent = WindowCommit(number // 2, number, 1, number // 2, 1, 2, 0.5, {}, 0, 0)
        vector = np.ones(SIZE, np.float32)
        mind.handle(Received(sessions[number % 2], sent, vector, 10, size_of(vector)), 0.0)
    for snapshot, center in ((1, 2), (2, 4)):
        (told,) = mind.handle(Received(DRIVER, FetchCenter(snapshot, 0)), 0.0)
        np.testing.assert_array_equal(told.vector, center)


def test_the_driver_is_told_why_a_worker_may_not_start():
    spec = make_spec(workers=1, trainable_size=SIZE, rows=ROWS)
    mind = ServerMind(spec, np.zeros(SIZE, np.float32))
    session = mind.handle(Join(0, 0), 0.0)[0].session
    with pytest.raises(RefusedError):
        mind.handle(Received(session, Ready(ROWS + 1, 0.1), np.empty(SIZE, np.float32)), 0.0)
    (told,) = mind.handle(Received(DRIVER, Poll(0)), 0.0)
    failed = [event for event in told.message.events if event.status == "failed"]
    assert [(event.worker, event.error) for event in failed] == [(0, "RefusedError")]


def judged(rule="downpour", workers=2, judge=None, on_nonfinite="stop", **terms):
    spec = make_spec(
        workers=workers,
        rule=rule,
        trainable_size=SIZE,
        rows=workers * ROWS,
        judge=judge_spec(judge),
        on_nonfinite=on_nonfinite,
        **terms,
    )
    return spec, ServerMind(spec, np.ones(SIZE, np.float32))


def send(mind, session, sequence, value, loss=0.5, version=0):
    vector = np.full(SIZE, value, np.float32)
    commit = WindowCommit(sequence, version, 1, sequence, 1, 1, loss, {}, 0, 0)
    event = Received(session, commit, vector, 10, size_of(vector))
    return mind.handle(event, 1.0)


def events(mind, kind):
    (told,) = mind.handle(Received(DRIVER, Poll(0)), 0.0)
    return [event for event in told.message.events if isinstance(event, kind)]


@pytest.mark.parametrize("name", ["elastic", "sequential", "member", "averaging", "distance"])
def test_the_answer_to_a_skipped_commit_is_the_center_also_the_second_time(name):
    """Workers with weights of their own would keep them, and send them again."""
    parameters = {"elastic": {"alpha": 0.5}}.get(name, {})
    rule = {"name": name, "parameters": parameters}
    _, mind = judged(rule, workers=1, on_nonfinite="skip")
    (session,) = started(mind, 1)
    for _ in range(2):
        (reply,) = send(mind, session, 0, np.nan)
        assert reply.message.skipped
        np.testing.assert_array_equal(reply.vector, np.ones(SIZE))
    (skip,) = events(mind, SkippedRecord)
    assert (skip.worker, skip.epoch, skip.window, skip.samples, skip.norm) == (0, 1, 0, 1, None)
    (reply,) = send(mind, session, 1, 2)
    assert not reply.message.skipped


def test_a_poisoned_worker_is_named_with_its_host():
    _, mind = judged(judge=Outliers())
    first, second = started(mind)
    mind.handle(Received(second, Beat("training", 1, "node-7", "")), 0.0)
    assert send(mind, first, 0, 0.5) == []
    assert mind.presence(first) == (1, 2)
    replies = send(mind, second, 0, 1e6)
    assert [(reply.to, reply.message.skipped) for reply in replies] == [
        (first, False),
        (second, True),
    ]
    (skip,) = events(mind, SkippedRecord)
    assert (skip.worker, skip.host, skip.norm) == (1, "node-7", pytest.approx(2e6))
    np.testing.assert_array_equal(mind.center.vector, np.full(SIZE, 1.5))


def test_an_outlier_may_stop_the_run():
    _, mind = judged(judge=Outliers(on_outlier="stop"))
    first, second = started(mind)
    send(mind, first, 0, 0.5)
    dismissed = send(mind, second, 0, 1e6)
    assert {type(action.error) for action in dismissed} == {OutlierError}
    with pytest.raises(OutlierError, match="Worker 1, epoch 1, window 0"):
        send(mind, first, 0, 0.5)
    (failed,) = (event for event in events(mind, WorkerRecord) if event.status == "failed")
    assert (failed.worker, failed.error) == (1, "OutlierError")


def test_a_change_against_the_course_of_the_center_is_found():
    spec, mind = judged(judge=Outliers(least_cosine=-0.5), workers=1)
    (session,) = started(mind, 1)
    for sequence in range(3):
        send(mind, session, sequence, 1, version=sequence)
    mind = ServerMind.from_state(spec, mind.to_state())
    (reply,) = send(mind, session, 3, -1, version=3)
    assert reply.message.skipped
    assert events(mind, SkippedRecord)[0].norm == pytest.approx(2.0)


def test_a_learning_rate_that_is_set_begins_the_comparison_anew():
    _, mind = judged(judge=Outliers(), workers=1)
    (session,) = started(mind, 1)
    send(mind, session, 0, 0.01)
    mind.handle(Received(DRIVER, Command(None, 0.5)), 1.0)
    (reply,) = send(mind, session, 1, 5.0, version=1)
    assert not reply.message.skipped


def test_a_center_that_would_overflow_skips_the_commit_where_nothing_is_to_stop():
    _, mind = judged(workers=1, on_nonfinite="skip")
    (session,) = started(mind, 1)
    send(mind, session, 0, 3e38)
    (reply,) = send(mind, session, 1, 3e38, version=1)
    assert reply.message.skipped
    assert np.isfinite(mind.center.vector).all()


def test_a_checkpoint_has_what_was_seen():
    """A server that goes on finds at once what its predecessor would have found."""
    spec, mind = judged(judge=Outliers(least_cosine=-0.5), workers=1)
    (session,) = started(mind, 1)
    for sequence in range(3):
        send(mind, session, sequence, 1, version=sequence)
    mind.handle(Received(DRIVER, Gather(at_once=True)), 1.0)
    (part,) = mind.handle(Received(DRIVER, FetchPart(1, 0)), 1.0)
    again = ServerMind.resumed(spec, [pack(part.tree)])
    (session,) = started(again, 1)
    (against,) = send(again, session, 3, -1, version=3)
    (large,) = send(again, session, 4, 1e6, version=3)
    assert against.message.skipped
    assert large.message.skipped
    assert len(events(again, SkippedRecord)) == 2


def test_members_that_begin_with_weights_of_their_own_are_no_outliers():
    _, mind = judged("member", judge=Outliers(), own_start=True)
    first, second = started(mind)
    send(mind, first, 0, 1.001)
    replies = send(mind, second, 0, 9.0)
    assert [reply.message.skipped for reply in replies] == [False, False]
    (reply,) = send(mind, second, 1, 9.5, version=1)
    assert reply.message.skipped

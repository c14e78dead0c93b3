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

from distkeras_grid.errors import FencedError, RefusedError, RoundTimeoutError
from distkeras_grid.parameter_server.messages import (
    Exchanged,
    Fail,
    FetchCenter,
    Finish,
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
    Tick,
)
from distkeras_grid.records import LateRecord, WindowRecord, WorkerRecord
from distkeras_grid.rules.magnitudes import size_of
from distkeras_grid.simulation.saved_state import read, write
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
    stale: list = field(default_factory=list)


class MindMachine(RuleBasedStateMachine):
    """Asynchronous: each commit is folded when it comes."""

    rule_name = "dynamic_rate"
    quorum = 1.0

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
        )
        self.mind = ServerMind(self.spec, np.zeros(SIZE, np.float32))
        self.workers = [Worker() for _ in range(SEATS)]
        self.center = np.zeros(SIZE, np.float32)
        self.version, self.now, self.open = 0, 100.0, False
        self.round, self.opened, self.folds, self.blamed = {}, None, [], []
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
        worker.last, worker.waits = commit, None
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
        session = self.mind.handle(Join(number, attempt), self.now)[0].session
        self.gone(number)
        if worker.session is not None:
            worker.stale.append(worker.session)
        worker.session, worker.attempt, worker.status = session, attempt, "joined"

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

    def commit_one(self, number, payload, samples):
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
            0.5,
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
        self.mind.handle(Lost(worker.session), self.now)
        self.gone(number)
        # Its connection is gone: it says no more until it joins again.
        worker.session, worker.status = None, "lost"

    def gone(self, number):
        self.workers[number].waits = None
        if self.round.pop(number, None) is not None and not self.round:
            self.opened = None

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
        self.check_tick(self.mind.handle(Tick(), self.now))

    def check_tick(self, actions):
        assert actions == []
        assert self.mind.deadline == math.inf

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
        late = [e.samples for e in events if isinstance(e, LateRecord)]
        assert sum(late) == sum(w.dropped for w in self.workers)

    @invariant()
    def nobody_innocent_is_blamed(self):
        (action,) = self.say(DRIVER, Poll(0))
        failed = [
            e.worker
            for e in action.message.events
            if isinstance(e, WorkerRecord) and e.status == "failed"
        ]
        assert failed == self.blamed

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
            worker.last = commit
            return [seat]
        self.opened = self.now if self.opened is None else self.opened
        self.round[seat] = (seat, commit, payload)
        worker.waits = "round"
        return self.close()

    def close(self):
        could = [n for n, w in enumerate(self.workers) if w.status != "finished" or n in self.round]
        if not self.round or len(self.round) < math.ceil(round(self.quorum * len(could), 6)):
            return []
        entries = [self.round[seat] for seat in sorted(self.round)]
        self.round, self.opened = {}, None
        self.fold(entries)
        return [seat for seat, *_ in entries]

    def check_finish(self, rest):
        starts = [a for a in rest if isinstance(a.message, Start)]
        super().check_finish(starts)
        self.check_answers([a for a in rest if a not in starts], self.close())

    def check_tick(self, actions):
        if self.opened is None or self.now < self.opened + TIMEOUT:
            assert actions == []
            return
        assert sorted(a.to.seat for a in actions) == sorted(self.round)
        for action in actions:
            assert isinstance(action, Dismiss)
            assert isinstance(action.error, RoundTimeoutError)
            self.workers[action.to.seat].waits = None
        missing = [
            n for n, w in enumerate(self.workers) if w.status != "finished" and n not in self.round
        ]
        self.blamed += missing
        self.round, self.opened = {}, None

    @rule()
    def nobody_is_blamed_twice(self):
        self.check_tick(self.mind.handle(Tick(), self.now))


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
        assert one == other


LONG = settings(
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestDynamicRate = MindMachine.TestCase
TestDynamicRate.settings = LONG
TestRounds = RoundMachine.TestCase
TestRounds.settings = LONG
TestSteps = StepsMachine.TestCase
TestSteps.settings = LONG


def started(mind, rows=ROWS):
    """Let all workers of a mind start; returns their sessions."""
    sessions = [mind.handle(Join(n, 0), 0.0)[0].session for n in range(2)]
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


def test_a_round_that_takes_too_long_is_over_and_its_commits_with_it():
    spec = make_spec(
        workers=2, rule="averaging", trainable_size=SIZE, rows=2 * ROWS, round_timeout=TIMEOUT
    )
    mind = ServerMind(spec, np.zeros(SIZE, np.float32))
    first, second = started(mind)

    def commit(session, value, now):
        sent = WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0, 0)
        return mind.handle(Received(session, sent, np.full(SIZE, value, np.float32)), now)

    assert commit(first, 1, 100.0) == []
    assert mind.deadline == 100.0 + TIMEOUT
    (dismissed,) = mind.handle(Tick(), mind.deadline)
    assert dismissed.to == first
    assert isinstance(dismissed.error, RoundTimeoutError)
    assert mind.deadline == math.inf
    assert mind.handle(Tick(), 1e6) == []
    # A round of its own, which the first one's commit is no part of.
    assert commit(second, 3, 1e6) == []
    assert mind.presence(second) == (1, 2)
    assert len(commit(first, 5, 1e6)) == 2
    np.testing.assert_array_equal(mind.center.vector, 4)


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

"""The server's core with a rule that raises, without memory, or with an outlier that stops the run.

Whoever waits is told, the driver is told once, and nobody is given a center that is folded by half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from distkeras_grid.errors import (
    OutlierError,
    ParameterServerError,
    RefusedError,
)
from distkeras_grid.parameter_server.messages import (
    BeginCheckpoint,
    Command,
    FetchCenter,
    Poll,
    Ready,
    WindowCommit,
    WorkerEnd,
)
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Disconnect,
    JoinRequest,
    ReceivedMessage,
    RejectWaiter,
)
from distkeras_grid.records import WorkerRecord
from distkeras_grid.rules import RULES, AveragingRule, DynamicRateRule
from distkeras_grid.spec import Outliers
from tests.distkeras_grid.parameter_server.test_server_core import (
    NUMBERS,
    ROWS,
    SEATS,
    SIZE,
    VALUES,
    JudgedMachine,
    MindMachine,
    RoundMachine,
    events,
    idle,
    judged,
    quick_and_long,
    send,
    started,
)


class Mistake:
    """Where the rules of this file raise, and after how many calls there."""

    where: ClassVar[str | None] = None
    after: ClassVar[int] = 0

    @classmethod
    def at(cls, place, center):
        if cls.where != place:
            return
        cls.after -= 1
        if cls.after < 0:
            # A fold is left by half, as if this had been the first chunk.
            if place == "fold":
                center[0] += 1
            raise LookupError("my own mistake")


@dataclass(frozen=True)
class MistakenRate(DynamicRateRule):
    name: ClassVar[str] = "mistaken_rate"

    def fold(self, center, payload, commit, memory):
        Mistake.at("fold", center)
        super().fold(center, payload, commit, memory)

    def on_join(self, center, memory):
        Mistake.at("on_join", center)
        super().on_join(center, memory)

    def repeat(self, center, payload):
        Mistake.at("repeat", center)
        super().repeat(center, payload)


@dataclass(frozen=True)
class MistakenMean(AveragingRule):
    name: ClassVar[str] = "mistaken_mean"

    def aggregate(self, center, payloads, commits):
        Mistake.at("fold", center)
        super().aggregate(center, payloads, commits)

    def on_join(self, center, memory):
        Mistake.at("on_join", center)
        super().on_join(center, memory)

    def repeat(self, center, payload):
        Mistake.at("repeat", center)
        super().repeat(center, payload)


class Broke(Exception):
    """The run has ended with an event: who sent it, what the core answered, what it raised."""

    def __init__(self, session, actions, error=None):
        self.session, self.actions, self.error = session, actions, error


class Breaking:
    """Now and then the rule raises. Then all is checked that must hold, and a new run begins."""

    error: type[ParameterServerError] = ParameterServerError
    watches = False

    def say(self, session, message, vector=None, state=None):
        try:
            actions = super().say(session, message, vector, state)
        except self.error as error:
            if not self.watches or type(error) is not self.error:
                raise
            raise Broke(session, [], error) from error
        errors = [a.error for a in actions if isinstance(a, RejectWaiter)]
        if self.watches and self.error in map(type, errors):
            raise Broke(session, actions)
        return actions

    def check_left(self, actions):
        """A worker that has gone may have been the last one whom others waited for."""
        errors = [a.error for a in actions if isinstance(a, RejectWaiter)]
        if self.watches and self.error in map(type, errors):
            # Some of those who waited may have been answered before the rule failed.
            raise Broke(DRIVER, actions)
        super().check_left(actions)

    def breaks(self, where, after, act):
        """Let things happen until the rule has raised; it may not come to that."""
        self.watches = True
        Mistake.where, Mistake.after = where, after
        try:
            act()
        except Broke as broke:
            Mistake.where, self.watches = None, False
            self.check_broken(broke)
            self.begin(all_there=True)
        finally:
            Mistake.where, self.watches = None, False

    def all_commit(self, payload):
        for number, worker in enumerate(self.workers):
            if idle(worker):
                self.commit_one(number, payload, 1)

    # What holds then

    def check_broken(self, broke):
        """The model is as it was before the event."""
        waited = {w.session for w in self.workers if w.waits is not None}
        if broke.error is None:
            # Each is answered once; who began before the rule failed has begun.
            told = [action.to for action in broke.actions]
            assert len(set(told)) == len(told)
            due = waited | ({broke.session} if broke.session != DRIVER else set())
            assert due <= set(told) <= due | {DRIVER}
            errors = [a.error for a in broke.actions if isinstance(a, RejectWaiter)]
            assert {type(error) for error in errors} == {self.error}
        else:
            assert not waited, "they are left without an answer"
        self.check_told()
        self.check_center()
        self.check_nobody_goes_on()
        self.check_told()

    def check_told(self):
        """The driver is told once; no event is held back, as it takes no checkpoint."""
        (update,) = self.say(DRIVER, Poll(0, self.number))
        failed = [
            event.error
            for event in update.message.events
            if isinstance(event, WorkerRecord) and event.status == "failed"
        ]
        assert failed == ["RefusedError"] * len(self.failed) + [self.error.__name__]

    def check_center(self):
        """A center that is folded by half is neither fetched nor saved."""
        with pytest.raises(RefusedError):
            self.say(DRIVER, FetchCenter(None, 0))
        with pytest.raises(RefusedError):
            self.say(DRIVER, BeginCheckpoint(at_once=True))

    def check_nobody_goes_on(self):
        with pytest.raises(RefusedError):
            self.say(DRIVER, BeginCheckpoint(at_once=True))
        for worker in self.workers:
            if worker.status == "running":
                sent = WindowCommit(
                    worker.sequence, worker.version, 1, worker.sequence, 1, 1, 0.5, {}, 0, 0
                )
                with pytest.raises(self.error):
                    self.say(worker.session, sent, np.ones(SIZE, np.float32))
        session = self.core.handle(JoinRequest(0, 10**6), self.now)[0].session
        with pytest.raises(self.error):
            self.say(session, Ready(ROWS, 0.1), np.empty(SIZE, np.float32))
        assert self.say(DRIVER, Command(True, None, begin=True))
        for number in range(1, SEATS):
            worker = self.workers[number]
            if worker.status == "running":
                assert self.say(worker.session, WorkerEnd())[0].to == worker.session
        assert not self.core._waiters.gate
        assert not self.core._waiters.round


class FailingRule(Breaking):
    """The rule raises in a fold, when a worker begins, or when a commit comes again."""

    @rule(after=st.sampled_from([0, 0, 1]), payload=VALUES)
    def the_rule_fails_in_a_fold(self, after, payload):
        self.breaks("fold", after, lambda: self.all_commit(payload))

    @rule(after=st.sampled_from([0, 0, 1]), number=NUMBERS, newer=st.booleans())
    def the_rule_fails_at_a_start(self, after, number, newer):
        def come():
            self.join(number, newer)
            for seat, worker in enumerate(self.workers):
                if worker.status == "joined":
                    self.ready(seat)

        self.breaks("on_join", after, come)

    @rule(data=st.data(), where=st.sampled_from(["repeat", "on_join"]), payload=VALUES)
    def the_rule_fails_at_a_repetition(self, data, where, payload):
        def again():
            if any(map(idle, self.workers)):
                self.commit_again(data=data, payload=payload)

        self.breaks(where, 0, again)


class BreakingMachine(FailingRule, MindMachine):
    rule_name = MistakenRate.name


class BreakingRounds(FailingRule, RoundMachine):
    rule_name = MistakenMean.name


class WholeCenter(Breaking):
    """Nothing of an outlier is in the center, which can be had and saved."""

    def check_center(self):
        (told,) = self.say(DRIVER, FetchCenter(None, 0))
        assert np.isfinite(told.vector).all()


class StoppingMachine(WholeCenter, JudgedMachine):
    """An outlier stops the run."""

    outliers = Outliers(on_outlier="stop")
    error = OutlierError

    @rule(payload=VALUES, number=NUMBERS)
    def commit_what_is_poisoned(self, payload, number):
        def poisoned():
            for seat, worker in enumerate(self.workers):
                if idle(worker):
                    self.commit_one(seat, payload * np.float32(1000 if seat == number else 1), 1)

        self.breaks(None, 0, poisoned)


@pytest.fixture(autouse=True)
def _rules(monkeypatch):
    for each in (MistakenRate, MistakenMean):
        monkeypatch.setitem(RULES, each.name, each)


TestBreaking, TestMoreBreaking = quick_and_long(BreakingMachine)
TestBreakingRounds, TestMoreBreakingRounds = quick_and_long(BreakingRounds)
TestStopping, TestMoreStopping = quick_and_long(StoppingMachine)


# -- memory that is used up ---------------------------------------------------------------------


class Full(np.ndarray):
    """A vector of which there is no room for a copy."""

    def copy(self, *_):
        raise MemoryError("no room")


def full_core(**terms):
    """Return a core of whose center there can be no copy, and the sessions of two workers."""
    spec, _ = judged("averaging", **terms)
    core = ServerCore(spec, np.ones(SIZE, np.float32).view(Full))
    return core, started(core)


def failures(core):
    return [event for event in events(core, WorkerRecord) if event.error]


def dismissed(actions):
    assert all(isinstance(action, RejectWaiter) for action in actions)
    return {action.to: type(action.error) for action in actions}


def test_a_commit_that_is_in_the_center_and_not_in_the_books_never_counts_twice():
    """Between the two the server keeps a copy of the gradient, for which there is no memory."""
    _, core = judged("mean_gradient")
    sessions = started(core)
    commit = WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0, 0)
    vector = np.full(SIZE, 0.5, np.float32).view(Full)
    assert core.handle(ReceivedMessage(sessions[0], commit, vector), 1.0) == []
    assert dismissed(send(core, sessions[1], 0, 0.5)) == dict.fromkeys(
        sessions, ParameterServerError
    )
    assert core.ledger.version == 0
    for session in sessions:
        with pytest.raises(ParameterServerError, match="failed with MemoryError: no room"):
            send(core, session, 0, 0.5)
    (told,) = failures(core)
    assert told.error == "ParameterServerError"


def test_who_waits_is_told_whatever_the_event_that_broke_the_mind():
    core, sessions = full_core()
    assert send(core, sessions[0], 0, 0.5) == []
    actions = core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=False)), 1.0)
    assert [(a.to, type(a.error)) for a in actions] == [
        (DRIVER, ParameterServerError),
        (sessions[0], ParameterServerError),
    ]
    assert failures(core) == [], "the driver has it as the answer to its request"
    assert core.handle(Disconnect(sessions[1]), 2.0) == [], "told once"
    with pytest.raises(ParameterServerError) as caught:
        send(core, sessions[0], 0, 0.5)
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize("event", [Disconnect, lambda _: JoinRequest(1, 1)])
def test_who_waits_is_told_that_there_is_no_memory_when_another_one_comes_or_goes(event):
    core, sessions = full_core(worker_state_limit=64)
    core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=False)), 1.0)
    assert send(core, sessions[0], 0, 0.5) == []
    # The checkpoint waits for both; the first one has nothing to tell.
    core._checkpoint.stop_waiting(0)
    first, *rest = core.handle(event(sessions[1]), 1.0)
    assert (first.to.seat, type(first.error)) == (1, ParameterServerError)
    assert dismissed(rest) == {sessions[0]: ParameterServerError}
    (told,) = failures(core)
    assert (told.worker, told.error) == (1, "ParameterServerError")
    with pytest.raises(ParameterServerError, match="MemoryError"):
        send(core, sessions[0], 0, 0.5)

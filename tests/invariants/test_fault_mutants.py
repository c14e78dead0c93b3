"""Mistakes in what is done about faults: the tests of the invariants notice each of them.

Each mistake is made in a core, and what it concerns has to fail: the runs with a fault, commits
that are not finite, or runs that go on from a checkpoint. Without the mistake, the same passes.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from distkeras_grid.errors import GridError, RefusedError
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.events import EventLog
from distkeras_grid.parameter_server.ledger import Ledger
from distkeras_grid.parameter_server.membership import Membership
from distkeras_grid.parameter_server.messages import Done, FetchCenter, Ready, WindowCommit
from distkeras_grid.parameter_server.retry_policy import RetryPolicy
from distkeras_grid.parameter_server.run_monitor import RunMonitor
from distkeras_grid.parameter_server.server_checkpoint import ServerCheckpoint
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Disconnect,
    JoinRequest,
    ReceivedMessage,
    RejectWaiter,
    SendReply,
)
from distkeras_grid.parameter_server.worker_state_store import WorkerStateStore
from distkeras_grid.rules import CommitInfo
from distkeras_grid.spec import RunSpec
from tests.invariants import test_checkpoint as checkpoints
from tests.invariants import test_fault_product as product
from tests.specs import make_spec

pytestmark = pytest.mark.slow


def folds_again(self, arrival, waiting, check=Ledger.is_new):
    """A commit that was folded is folded once more."""
    if not check(self, arrival, waiting):
        self._work[arrival.sender.seat].next_sequence = arrival.message.sequence
    return True


def takes_other_rows(
    self, session, rows, seconds=0.0, digest="", transport="", ready=Membership.ready
):
    return ready(self, session, rows, seconds, "", transport)


def came(self):
    """Seats that have been ready at some time."""
    return sum(member.rows is not None for member in self.seats)


def waits_for_all(self, session):
    return self.members.present == len(self.members.seats)


def impatient(self, clock, due=RunMonitor._due):
    return clock.since + (due(self, clock) - clock.since) / 8


def blames_all(self, workers, now, told=RunMonitor._describe):
    return told(self, self._clocks, now)


def forgets_who_was_asked(self, event, join=ServerCore._join):
    self._checkpoint.states.stop_waiting(event.seat)
    return join(self, event)


def remembers_what_was_sent(self, event):
    """A worker that connects again is taken to know the last reply."""
    self.members.resume(event.sender)
    return [SendReply(event.sender, Done())]


def never_stale(self, arrival):
    commit = arrival.message
    return CommitInfo(arrival.sender.seat, commit.steps, commit.samples, 0)


def stale_by_its_own_commits(self, arrival):
    """Staleness is counted from the seat's commits, and not from the version that one names."""
    commit = arrival.message
    staleness = self.version - self._work[arrival.sender.seat].next_sequence
    return CommitInfo(arrival.sender.seat, commit.steps, commit.samples, staleness)


def puts_nothing_back(self, seat, before, *, small, end=Center._end):
    """A fold that is refused is in the center all the same."""
    try:
        end(self, seat, before, small=small)
    except RefusedError:
        self.vector.fill(0)
        raise


# -- what has to fail ----------------------------------------------------------------------------


def faults(fault, family):
    """Runs with a fault at each of its points."""
    kind = "DGC" if (family, "DGC", fault) in product.MEANINGFUL else "BatchNorm"
    product.test_whatever_dies_wherever_the_run_ends_as_promised(family, kind, fault)


def not_finite():
    """Commits that are not finite, or would make the center so: each is refused, and no trace."""
    size, rows = 4, 8
    spec = make_spec(rows=rows, trainable_size=size)
    core = ServerCore(spec, np.ones(size, np.float32))
    session = core.handle(JoinRequest(0, 0), 0.0)[0].session
    core.handle(ReceivedMessage(session, Ready(rows, 0.1), np.empty(size, np.float32)), 0.0)

    def send(sequence, value, loss=0.5):
        commit = WindowCommit(sequence, sequence, 1, sequence, 1, 1, loss, {}, 0, 0)
        vector = np.full(size, value, np.float32)
        (answer,) = core.handle(ReceivedMessage(session, commit, vector), 0.0)
        if isinstance(answer, RejectWaiter):
            raise answer.error

    def refuses(sequence, *commit):
        before = core.center.vector.copy()
        with pytest.raises(RefusedError):
            send(sequence, *commit)
        (told,) = core.handle(ReceivedMessage(DRIVER, FetchCenter(None, 0)), 0.0)
        np.testing.assert_array_equal(told.vector, before)

    for value, loss in ((math.nan, 0.5), (math.inf, 0.5), (1.0, math.nan), (1.0, math.inf)):
        refuses(0, value, loss)
    send(0, 3e38)
    refuses(1, 3e38)
    send(1, -3e38)
    assert core.ledger.samples_folded == 2


def all_start_at_once():
    """Nobody starts before all are there; whoever comes again later need not wait."""
    workers, size, rows = 3, 4, 8
    spec = make_spec(workers=workers, rows=workers * rows, trainable_size=size)
    core, started = ServerCore(spec, np.ones(size, np.float32)), []

    def come(seat, attempt=0):
        session = core.handle(JoinRequest(seat, attempt), 0.0)[0].session
        ready = ReceivedMessage(session, Ready(rows, 0.1), np.empty(size, np.float32))
        started.extend(action.to for action in core.handle(ready, 0.0))
        return session

    first, second = come(0), come(1)
    core.handle(Disconnect(first), 0.0)
    # As many have come as there are workers, but one has gone.
    third = come(2)
    assert started == []
    again = come(0, attempt=1)
    assert sorted(started, key=lambda session: session.seat) == [again, second, third]
    for session in (second, third):
        core.handle(Disconnect(session), 0.0)
    assert come(1, attempt=1) == started[-1]


def each_has_its_own_rows():
    """Who says that it has the rows of others is refused, and these are not."""
    workers, size, rows = 2, 4, 8
    spec = make_spec(workers=workers, rows=workers * rows, trainable_size=size)
    core = ServerCore(spec, np.ones(size, np.float32))
    sessions = [core.handle(JoinRequest(seat, 0), 0.0)[0].session for seat in range(workers)]

    def ready(seat, count):
        event = ReceivedMessage(sessions[seat], Ready(count, 0.1), np.empty(size, np.float32))
        return core.handle(event, 0.0)

    with pytest.raises(RefusedError):
        ready(0, workers * rows - 1)
    assert ready(1, rows) == []
    assert len(ready(0, rows)) == workers


def rounds_go_on():
    checkpoints.test_a_run_alone_or_in_rounds_ends_bit_for_bit_where_it_would_have(
        "averaging", {}, 3, None, range(3)
    )


def workers_go_on():
    checkpoints.test_a_run_of_several_workers_loses_and_repeats_no_window(
        "dynamic_rate", {}, None, range(3)
    )


#: What is wrong: the class, the name of its method, the method in its place, and what has to fail:
#: the fault and the family whose runs do, or a function.
MISTAKES = {
    "an old connection is heard": (
        *(Membership, "current", lambda self, session: self.seats[session.seat]),
        *("zombie twin", "delta"),
    ),
    "a commit counts twice": (Ledger, "is_new", folds_again, "reset", "delta"),
    "other rows are taken": (Membership, "ready", takes_other_rows, "rows changed", "delta"),
    "rows of others are taken": (
        *(RunSpec, "largest_share", lambda self: self.rows, each_has_its_own_rows),
    ),
    "the gate opens too early": (
        *(Ledger, "may_start", lambda self, session: True, all_start_at_once),  # noqa: ARG005
    ),
    "who has gone counts as there": (Membership, "present", property(came), all_start_at_once),
    "who comes again waits for all": (*(Ledger, "may_start", waits_for_all, all_start_at_once),),
    "a quorum waits for all": (
        *(Membership, "needed", lambda self, present: len(self.seats)),  # noqa: ARG005
        *("slot gone", "averaging with quorum"),
    ),
    "changes are told to who knows nothing": (
        *(ServerCore, "_resume"),
        remembers_what_was_sent,
        *("reset", "staleness"),
    ),
    "a lost worker stays in its round": (
        *(ServerCore, "_drop", lambda self, seat, only=None: []),  # noqa: ARG005
        *("kill", "averaging"),
    ),
    "who connects again is not asked any more": (
        *(ServerCore, "_join", forgets_who_was_asked, "reset", "elastic"),
    ),
    "what a worker keeps is thrown away": (
        *(WorkerStateStore, "receive", lambda self, seat, kept, now: None),  # noqa: ARG005
        *("kill", "elastic"),
    ),
    "nobody is started again": (
        *(RunMonitor, "_restarts", lambda self, overdue, now: []),  # noqa: ARG005
        *("stop", "single"),
    ),
    "there are no deadlines": (
        *(RunMonitor, "_due", lambda self, clock: math.inf),  # noqa: ARG005
        *("slot gone", "synchronous"),
    ),
    "who is slow is started again": (RunMonitor, "_due", impatient, "slow", "ensemble"),
    "others are blamed": (RunMonitor, "_describe", blames_all, "slot gone", "server state"),
    "who cannot start is tried for ever": (
        *(RetryPolicy, "allows", lambda self, key, progress, failures=1: True),  # noqa: ARG005
        *("executor x5", "single"),
    ),
    "who is given up ends the work of others": (
        *(RunMonitor, "_enough"),
        lambda self, able, finished: finished + len(able) >= self.needed,
        *("executor x5", "delta"),
    ),
    "no commit is stale": (Ledger, "info", never_stale, "reset", "staleness"),
    "a commit that comes again is not stale": (
        *(Ledger, "info", stale_by_its_own_commits),
        *("kill", "staleness"),
    ),
    "a loss that is not finite is folded": (
        *(Ledger, "check_finite", lambda self, arrival, finite: ""),  # noqa: ARG005
        not_finite,
    ),
    "a center may overflow": (
        *(Center, "_end", lambda self, seat, before, *, small: None, not_finite),  # noqa: ARG005
    ),
    "a refused fold leaves a trace": (Center, "_end", puts_nothing_back, not_finite),
    "a checkpoint does not wait for its workers": (
        *(ServerCheckpoint, "_complete", property(lambda self: self._pending), rounds_go_on),
    ),
    "the driver's part of a checkpoint is of another moment": (
        *(EventLog, "pause", lambda self: None, workers_go_on),  # noqa: ARG005
    ),
    "what workers keep is not in a checkpoint": (
        *(WorkerStateStore, "all", property(lambda self: {}), rounds_go_on),  # noqa: ARG005
    ),
}


def scenario_of(mistake):
    """Return what has to fail with a mistake: a function and its arguments."""
    scenario = MISTAKES[mistake][3:]
    return scenario if callable(scenario[0]) else (faults, *scenario)


@functools.cache
def passes(*scenario):
    """Whether it passes without a mistake; what is undisturbed is remembered from then."""
    act, *arguments = scenario
    act(*arguments)
    return True


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(monkeypatch, mistake):
    owner, name, method = MISTAKES[mistake][:3]
    act, *arguments = scenario_of(mistake)
    assert passes(act, *arguments)
    monkeypatch.setattr(owner, name, method)
    with pytest.raises((AssertionError, GridError, pytest.fail.Exception)):
        act(*arguments)

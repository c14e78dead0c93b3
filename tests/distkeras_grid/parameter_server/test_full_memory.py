"""Memory that is used up ends the run for everybody, who are told why."""

import numpy as np
import pytest

from distkeras_grid.errors import ParameterServerError, RefusedError
from distkeras_grid.parameter_server.messages import (
    BeginCheckpoint,
    Poll,
    Ready,
    WindowCommit,
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
from distkeras_grid.rules.finite_checks import size_of
from tests.specs import make_spec

SIZE, ROWS = 3, 6


def built(rule="downpour", workers=2, center=None, **terms):
    rule = rule if isinstance(rule, dict) else {"name": rule, "parameters": {}}
    spec = make_spec(
        workers=workers,
        rule=rule,
        trainable_size=SIZE,
        rows=workers * ROWS,
        **terms,
    )
    center = np.ones(SIZE, np.float32) if center is None else center
    core = ServerCore(spec, center)
    sessions = [core.handle(JoinRequest(seat, 0), 0.0)[0].session for seat in range(workers)]
    for session in sessions:
        core.handle(ReceivedMessage(session, Ready(ROWS, 0.1), np.empty(SIZE, np.float32)), 0.0)
    return spec, core, sessions


def send(core, session, sequence=0, value=0.5, version=0, vector=None, now=1.0):
    sent = np.full(SIZE, value, np.float32) if vector is None else vector
    commit = WindowCommit(sequence, version, 1, sequence, 1, 1, 0.5, {}, 0, 0)
    return core.handle(ReceivedMessage(session, commit, sent, 10, size_of(sent)), now)


def failures(core):
    (told,) = core.handle(ReceivedMessage(DRIVER, Poll(0)), 2.0)
    return [e for e in told.message.events if isinstance(e, WorkerRecord) and e.error]


def dismissed(actions):
    assert all(isinstance(action, RejectWaiter) for action in actions)
    return {action.to: type(action.error) for action in actions}


def check_broken(core, sessions, error, said):
    """Everybody is told, the driver once, and nobody goes on."""
    for session in sessions:
        with pytest.raises(error, match=said):
            send(core, session)
    again = core.handle(JoinRequest(0, 1), 2.0)[0].session
    with pytest.raises(error, match=said):
        core.handle(ReceivedMessage(again, Ready(ROWS, 0.1), np.empty(SIZE, np.float32)), 2.0)
    with pytest.raises(RefusedError):
        core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=True)), 2.0)
    (told,) = failures(core)
    assert told.error == error.__name__
    assert said in told.message


class Full(np.ndarray):
    """A vector of which there is no room for a copy."""

    def copy(self, *_):
        raise MemoryError("no room")


def test_a_commit_that_is_in_the_center_and_not_in_the_books_never_counts_twice():
    """Between the two the server keeps a copy of the gradient, for which there is no memory."""
    _, core, sessions = built("mean_gradient")
    assert send(core, sessions[0], vector=np.full(SIZE, 0.5, np.float32).view(Full)) == []
    assert dismissed(send(core, sessions[1])) == dict.fromkeys(sessions, ParameterServerError)
    assert core.ledger.version == 0
    check_broken(core, sessions, ParameterServerError, "failed with MemoryError: no room")


def test_who_waits_is_told_whatever_the_event_that_broke_the_mind():
    center = np.ones(SIZE, np.float32).view(Full)
    _, core, sessions = built("averaging", center=center)
    assert send(core, sessions[0]) == []
    actions = core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=False)), 1.0)
    assert [(a.to, type(a.error)) for a in actions] == [
        (DRIVER, ParameterServerError),
        (sessions[0], ParameterServerError),
    ]
    assert failures(core) == [], "the driver has it as the answer to its request"
    assert core.handle(Disconnect(sessions[1]), 2.0) == [], "told once"
    with pytest.raises(ParameterServerError) as caught:
        send(core, sessions[0])
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize("event", [Disconnect, lambda _: JoinRequest(1, 1)])
def test_who_waits_is_told_that_there_is_no_memory_when_another_one_comes_or_goes(event):
    center = np.ones(SIZE, np.float32).view(Full)
    _, core, sessions = built("averaging", center=center, worker_state_limit=64)
    core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=False)), 1.0)
    assert send(core, sessions[0]) == []
    # The checkpoint waits for both; the first one has nothing to tell.
    core._checkpoint.stop_waiting(0)
    first, *rest = core.handle(event(sessions[1]), 1.0)
    assert (first.to.seat, type(first.error)) == (1, ParameterServerError)
    assert dismissed(rest) == {sessions[0]: ParameterServerError}
    (told,) = failures(core)
    assert (told.worker, told.error) == (1, "ParameterServerError")
    with pytest.raises(ParameterServerError, match="MemoryError"):
        send(core, sessions[0])

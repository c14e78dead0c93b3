"""Where workers make the steps: what the server keeps of them, and whom it tells what."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import RefusedError
from distkeras_grid.parameter_server.gradient_log import (
    GradientLog,
)
from distkeras_grid.parameter_server.messages import (
    Command,
    FetchCenter,
    FetchState,
    FetchStep,
    Poll,
    PutOptimizerState,
    Ready,
    Resume,
    WindowCommit,
    WorkerEnd,
)
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Disconnect,
    JoinRequest,
    ReceivedMessage,
)
from distkeras_grid.records import EpochEnded
from distkeras_grid.weights import StateSection, Variable
from tests.specs import make_spec

SIZE, ROWS, EPOCHS = 3, 4, 2


#: A count, and a velocity.
STATE = StateSection((Variable("iteration", (), "int64"), Variable("velocity", (SIZE,))))


def vector(value=0.0):
    return np.full(SIZE, value, np.float32)


def state(value=0.0, count=7):
    return STATE.pack([np.int64(count), vector(value)])


def test_an_optimizer_without_a_state_hands_over_its_weights_alone():
    replay = GradientLog()
    assert replay.receive(5, np.empty(0, np.uint8))
    assert (replay.version, replay.begin(1)) == (5, (5, False))


class Grid:
    """A core and two workers, whose batches are of one row each."""

    def __init__(self, quorum=1.0, epochs=EPOCHS, snapshots=1):
        spec = make_spec(
            workers=2,
            rule="mean_gradient",
            trainable_size=SIZE,
            state=STATE.variables,
            rows=ROWS,
            epochs=epochs,
            snapshots_per_epoch=snapshots,
            quorum=quorum,
        )
        self.spec, self.core = spec, ServerCore(spec, vector())
        self.sessions = [self.join(seat, 0) for seat in (0, 1)]
        self.starts = [self.start(session) for session in self.sessions]

    def join(self, seat, attempt):
        return self.core.handle(JoinRequest(seat, attempt), 0.0)[0].session

    def say(self, session, message, held=None, state=None):
        """Send a message; return what of the answers is for its sender."""
        actions = self.core.handle(
            ReceivedMessage(session, message, vector(0) if held is None else held, state=state), 0.0
        )
        return next((action for action in actions if action.to == session), None)

    def start(self, session):
        return self.say(session, Ready(ROWS // 2, 0.0), vector())

    def commit(self, seat, sequence):
        """Return the answers to a commit, by worker."""
        epoch, window = divmod(sequence, ROWS // 2)
        commit = WindowCommit(sequence, sequence, 1 + epoch, window, 1, 1, 0.5, {}, 0.0, 0.1)
        actions = self.core.handle(ReceivedMessage(self.sessions[seat], commit, vector(1)), 0.0)
        return {action.to.seat: action.message for action in actions}

    def round(self, sequence):
        return self.commit(0, sequence) | self.commit(1, sequence)

    def stop(self):
        """End the training: whoever has made steps tells them now, asked or not."""
        self.say(DRIVER, Command(True, None))

    def tell(self, seat, version, weights, velocity=0.0, count=7):
        """Hand over weights and state."""
        sent = PutOptimizerState(version), vector(weights), state(velocity, count)
        self.say(self.sessions[seat], *sent)

    def center(self, snapshot=None):
        return self.say(DRIVER, FetchCenter(snapshot, 0))

    def ended_epochs(self):
        events = self.say(DRIVER, Poll(0)).message.events
        return [event.epoch for event in events if isinstance(event, EpochEnded)]


def test_the_state_promised_at_the_start_is_given_though_a_newer_one_has_come():
    grid = Grid()
    grid.round(0)
    grid.stop()
    grid.tell(0, 1, 10, 11)
    late = grid.join(1, 1)
    start = grid.start(late).message
    assert (start.version, start.newest, start.has_state) == (1, 1, True)
    grid.sessions[1] = late
    grid.round(1)
    grid.tell(0, 2, 20, 21)
    for _ in range(2):
        # The answer may be lost, and asked for again.
        np.testing.assert_array_equal(grid.say(late, FetchState()).state, state(11))


def test_an_epoch_that_waits_for_its_weights_is_told_when_they_have_come():
    grid = Grid()
    grid.round(0)
    answer = grid.round(1)[0]
    assert answer.state_wanted
    assert grid.ended_epochs() == []
    with pytest.raises(RefusedError):
        grid.center(1)
    grid.tell(0, 2, 7, 8)
    assert grid.ended_epochs() == [1]
    for _ in range(2):
        # The answer may be lost, and asked for again.
        np.testing.assert_array_equal(grid.center(1).vector, vector(7))


def all_rounds(grid):
    """Make all rounds of the run; return the answers to the last one."""
    last = grid.spec.rows // 2 * grid.spec.epochs
    for sequence in range(last - 1):
        answers = grid.round(sequence)
        assert not any(each.state_wanted for each in answers.values())
        assert {each.state_version for each in answers.values()} == {0}
        for session in grid.sessions:
            grid.say(session, FetchStep(sequence))
    return last, grid.round(last - 1)


def test_after_the_last_round_one_worker_tells_for_all():
    grid = Grid(snapshots=0)
    last, answers = all_rounds(grid)
    assert [answers[seat].state_wanted for seat in (0, 1)] == [True, False]
    # A worker tells at its end what it thinks that the server lacks.
    assert [answers[seat].state_version for seat in (0, 1)] == [0, last]
    grid.say(grid.sessions[1], WorkerEnd())
    grid.tell(0, last, 7, 8)
    np.testing.assert_array_equal(grid.center().vector, vector(7))


def test_each_worker_tells_where_the_run_may_end_without_the_one_that_is_asked():
    for answers in (all_rounds(Grid(quorum=0.5, snapshots=0))[1], stopped_round()):
        assert not any(each.state_wanted for each in answers.values())
        assert {each.state_version for each in answers.values()} == {0}


def stopped_round():
    grid = Grid(snapshots=0)
    grid.stop()
    return grid.round(0)


def test_a_run_that_its_quorum_has_ended_waits_for_no_weights():
    grid = Grid(quorum=0.5)
    for sequence in range(2):
        grid.commit(0, sequence)
        grid.commit(1, sequence)
    grid.core.handle(Disconnect(grid.sessions[0]), 0.0)
    assert grid.ended_epochs() == []
    grid.say(grid.sessions[1], WorkerEnd())
    assert grid.ended_epochs() == [1, 2]
    assert grid.center(1).message.version == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_not_finite_is_refused_and_nobody_gets_it(value):
    grid = Grid()
    grid.round(0)
    grid.stop()
    with pytest.raises(RefusedError):
        grid.tell(0, 1, 5, value)
    np.testing.assert_array_equal(grid.center().vector, vector())
    late = grid.join(1, 1)
    assert not grid.start(late).message.has_state
    with pytest.raises(RefusedError):
        grid.say(late, FetchState())


def test_a_count_may_have_any_bits():
    """As a float the count would be NaN: it travels in its own type."""
    grid = Grid()
    grid.round(0)
    grid.stop()
    nan = int(np.array([np.nan]).view(np.int64)[0])
    grid.tell(0, 1, 5, 2, count=nan)
    late = grid.join(1, 1)
    assert grid.start(late).message.has_state
    count, velocity = STATE.unpack(grid.say(late, FetchState()).state)
    assert (int(count), velocity.tolist()) == (nan, [2, 2, 2])


def test_nobody_hands_over_a_state_where_workers_make_no_steps():
    core = ServerCore(make_spec(workers=1, trainable_size=SIZE, rows=ROWS), vector())
    (seat,) = core.handle(JoinRequest(0, 0), 0.0)
    core.handle(ReceivedMessage(seat.session, Ready(ROWS, 0.0), vector()), 0.0)
    for message, kept in (
        (PutOptimizerState(0), None),
        (PutOptimizerState(0), state()),
        (FetchState(), None),
    ):
        with pytest.raises(RefusedError):
            core.handle(ReceivedMessage(seat.session, message, vector(5), state=kept), 0.0)
    np.testing.assert_array_equal(core.center.vector, vector())


def test_a_worker_whose_reply_was_lost_is_asked_again_until_it_has_handed_over():
    grid = Grid()
    grid.round(0)
    assert grid.round(1)[0].state_wanted
    # The same commit on another connection.
    grid.sessions[0] = grid.join(0, 0)
    grid.say(grid.sessions[0], Resume())
    assert grid.commit(0, 1)[0].state_wanted
    assert not grid.commit(1, 1)[1].state_wanted
    grid.tell(0, 2, 7, 8)
    assert not grid.commit(0, 1)[0].state_wanted


def test_who_was_asked_tells_over_a_new_connection_but_no_new_attempt_does():
    grid = Grid()
    grid.round(0)
    assert grid.round(1)[0].state_wanted
    grid.core.handle(Disconnect(grid.sessions[0]), 0.0)
    grid.sessions[0] = grid.join(0, 0)
    grid.say(grid.sessions[0], Resume())
    grid.tell(0, 2, 5)
    np.testing.assert_array_equal(grid.center().vector, vector(5))
    other = Grid()
    other.round(0)
    assert other.round(1)[0].state_wanted
    other.sessions[0] = other.join(0, 1)
    other.start(other.sessions[0])
    with pytest.raises(RefusedError):
        other.tell(0, 2, 5)

"""Where workers make the steps: what the server keeps of them, and whom it tells what."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import FencedError, RefusedError
from distkeras_grid.parameter_server.messages import (
    FetchCenter,
    FetchState,
    FetchStep,
    Finish,
    HandOver,
    Poll,
    Ready,
    WindowCommit,
)
from distkeras_grid.parameter_server.mind import DRIVER, Join, Lost, Received, ServerMind
from distkeras_grid.parameter_server.replay import KEPT_STEPS, MOST_STEPS, KeptStep, Replay
from distkeras_grid.records import EpochEnded
from distkeras_grid.rules.magnitudes import size_of
from tests.specs import make_spec

SIZE, ROWS, EPOCHS = 3, 4, 2


def vector(value=0.0):
    return np.full(SIZE, value, np.float32)


def test_a_state_comes_in_parts_and_the_newest_stays():
    replay = Replay()
    assert replay.receive(0, 5, 0, 2, vector(1)) is None
    assert replay.receive(1, 4, 0, 2, vector(3)) is None
    np.testing.assert_array_equal(replay.receive(0, 5, 1, 2, vector(2)), vector(1))
    assert replay.version == 5
    np.testing.assert_array_equal(replay.parts, [vector(2)])
    assert replay.receive(1, 4, 1, 2, vector(4)) is None, "an older one is forgotten"
    np.testing.assert_array_equal(replay.parts, [vector(2)])


def test_a_state_that_begins_again_replaces_what_had_come():
    replay = Replay()
    replay.receive(0, 5, 0, 2, vector(1))
    replay.receive(0, 6, 0, 2, vector(7))
    np.testing.assert_array_equal(replay.receive(0, 6, 1, 2, vector(2)), vector(7))


@pytest.mark.parametrize(("part", "parts"), [(1, 2), (-1, 2), (0, 0), (2, 2), (0, 33), (0, 2**40)])
def test_a_part_that_is_not_due_is_refused(part, parts):
    with pytest.raises(RefusedError, match="Part 0"):
        Replay().receive(0, 5, part, parts, vector())


def test_steps_are_kept_while_somebody_needs_them():
    replay = Replay()
    replay.begin(1)
    for version in range(4):
        replay.add(version, KeptStep(vector(version), None))
    replay.step(1, 2)
    replay.receive(0, 3, 0, 1, vector())
    replay.forget(newest=4)
    assert replay.step(1, 2).gradient[0] == 2
    with pytest.raises(RefusedError):
        replay.step(1, 1)


@pytest.mark.parametrize("told", [True, False])
def test_a_worker_that_hangs_costs_no_memory_without_end(told):
    """A quorum goes on without it; it begins again, from newer weights, when it comes back."""
    replay = Replay()
    replay.begin(0)
    for version in range(500):
        replay.add(version, KeptStep(vector(version), None))
        if told and version % KEPT_STEPS == 0:
            replay.receive(1, version, 0, 2, vector())
            replay.receive(1, version, 1, 2, vector())
        replay.forget(newest=version + 1)
        assert replay.vectors <= MOST_STEPS + 2
    with pytest.raises(RefusedError):
        replay.step(0, 0)


def test_a_replay_goes_on_from_its_saved_state():
    replay = Replay()
    replay.receive(1, 1, 0, 2, vector(5))
    replay.receive(1, 1, 1, 2, vector(6))
    replay.begin(0)
    replay.add(1, KeptStep(vector(3), 0.5))
    replay.receive(1, 2, 0, 2, vector(7))
    other = Replay.from_state(replay.to_state())
    np.testing.assert_array_equal(other.promised(0, 1), vector(6))
    assert other.step(0, 1).learning_rate == 0.5
    np.testing.assert_array_equal(other.receive(1, 2, 1, 2, vector(8)), vector(7))


class Grid:
    """A mind and two workers, whose batches are of one row each."""

    def __init__(self, quorum=1.0):
        spec = make_spec(
            workers=2,
            rule="mean_gradient",
            trainable_size=SIZE,
            rows=ROWS,
            epochs=EPOCHS,
            snapshots_per_epoch=1,
            quorum=quorum,
        )
        self.mind = ServerMind(spec, vector())
        self.sessions = [self.join(seat, 0) for seat in (0, 1)]
        self.starts = [self.start(session) for session in self.sessions]

    def join(self, seat, attempt):
        return self.mind.handle(Join(seat, attempt), 0.0)[0].session

    def say(self, session, message, held=None):
        """Send a message; return what of the answers is for its sender."""
        size = size_of(held) if isinstance(message, HandOver) else None
        actions = self.mind.handle(Received(session, message, held, 0, size), 0.0)
        return next((action for action in actions if action.to == session), None)

    def start(self, session):
        return self.say(session, Ready(ROWS // 2, 0.0), vector())

    def commit(self, seat, sequence):
        """Return the answers to a commit, by worker."""
        commit = WindowCommit(sequence, sequence, 1, sequence, 1, 1, 0.5, {}, 0.0, 0.1)
        actions = self.mind.handle(Received(self.sessions[seat], commit, vector(1)), 0.0)
        return {action.to.seat: action.message for action in actions}

    def round(self, sequence):
        return self.commit(0, sequence) | self.commit(1, sequence)

    def tell(self, seat, version, *parts):
        for number, part in enumerate(parts):
            message = HandOver(version, number, len(parts))
            self.say(self.sessions[seat], message, vector(part))

    def center(self, snapshot=None):
        return self.say(DRIVER, FetchCenter(snapshot, 0))

    def ended_epochs(self):
        events = self.say(DRIVER, Poll(0)).message.events
        return [event.epoch for event in events if isinstance(event, EpochEnded)]


def test_the_state_promised_at_the_start_is_given_though_a_newer_one_has_come():
    grid = Grid()
    grid.round(0)
    grid.tell(0, 1, 10, 11, 12)
    late = grid.join(1, 1)
    start = grid.start(late).message
    assert (start.version, start.newest, start.state_parts) == (1, 1, 2)
    grid.sessions[1] = late
    grid.round(1)
    grid.tell(0, 2, 20, 21, 22)
    for part in (1, 2):
        np.testing.assert_array_equal(grid.say(late, FetchState(part)).vector, vector(10 + part))
    with pytest.raises(RefusedError):
        grid.say(late, FetchState(3))


def test_an_epoch_that_waits_for_its_weights_is_told_when_they_have_come():
    grid = Grid()
    grid.round(0)
    answer = grid.round(1)[0]
    assert answer.state_wanted
    assert grid.ended_epochs() == []
    with pytest.raises(RefusedError):
        grid.center(1)
    grid.tell(1, 2, 7, 8)
    assert grid.ended_epochs() == [1]
    for _ in range(2):
        # The answer may be lost, and asked for again.
        np.testing.assert_array_equal(grid.center(1).vector, vector(7))
    grid.ended_epochs()
    with pytest.raises(RefusedError):
        grid.center(1)


def test_who_was_asked_may_die_and_the_next_is_asked():
    grid = Grid()
    grid.round(0)
    assert grid.round(1)[0].state_wanted
    grid.mind.handle(Lost(grid.sessions[0]), 0.0)
    grid.sessions[0] = grid.join(0, 1)
    grid.start(grid.sessions[0])
    assert grid.round(2)[0].state_wanted


def test_a_run_that_its_quorum_has_ended_waits_for_no_weights():
    grid = Grid(quorum=0.5)
    for sequence in range(2):
        grid.commit(0, sequence)
        grid.commit(1, sequence)
    grid.mind.handle(Lost(grid.sessions[0]), 0.0)
    assert grid.ended_epochs() == []
    grid.say(grid.sessions[1], Finish())
    assert grid.ended_epochs() == [1, 2]
    assert grid.center(1).message.version == 2


def test_only_the_newest_connection_steps_and_tells():
    grid = Grid()
    grid.round(0)
    old = grid.sessions[1]
    grid.join(1, 1)
    for message in (FetchStep(0), FetchState(1), HandOver(1, 0, 1)):
        with pytest.raises(FencedError):
            grid.say(old, message, vector(5))


@pytest.mark.parametrize(("version", "value"), [(2, 1.0), (1, np.nan)])
def test_weights_of_the_future_or_not_finite_are_refused(version, value):
    grid = Grid()
    grid.round(0)
    with pytest.raises(RefusedError):
        grid.tell(0, version, value)
    assert np.isfinite(grid.center().vector).all()

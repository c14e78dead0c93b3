"""Where workers make the steps: what the server keeps of them, and whom it tells what."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import FencedError, RefusedError
from distkeras_grid.parameter_server.coordinator import Coordinator
from distkeras_grid.parameter_server.messages import HandOver, Ready, WindowCommit
from distkeras_grid.parameter_server.replay import KeptStep, Replay
from distkeras_grid.parameter_server.state import Arrival
from distkeras_grid.records import EpochEnded
from tests.distkeras_grid.parameter_server.conftest import make_settings

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


@pytest.mark.parametrize(("part", "parts"), [(1, 2), (-1, 2), (0, 0), (2, 2)])
def test_a_part_that_is_not_due_is_refused(part, parts):
    with pytest.raises(RefusedError, match="state part 0 is due, part"):
        Replay().receive(0, 5, part, parts, vector())


def test_steps_are_kept_while_somebody_needs_them():
    replay = Replay()
    for version in range(4):
        replay.add(version, KeptStep(vector(version), None))
    replay.receive(0, 3, 0, 1, vector())
    replay.forget([2])
    assert replay.step(2).gradient[0] == 2
    with pytest.raises(RefusedError, match="after version 1 is not kept; kept are 2 to 3"):
        replay.step(1)


class Grid:
    """A coordinator and two workers, whose batches are of one row each."""

    def __init__(self, quorum=1.0):
        settings = make_settings(
            seats=2,
            rule={"name": "mean_gradient", "parameters": {}},
            trainable_size=SIZE,
            rows=ROWS,
            epochs=EPOCHS,
            snapshots_per_epoch=1,
            quorum=quorum,
        )
        self.server = Coordinator(settings, vector())
        self.sessions = [self.server.join(seat, 0) for seat in (0, 1)]
        self.starts = [self.start(session) for session in self.sessions]

    def start(self, session):
        return self.server.ready(session, Ready(ROWS // 2, 0.0), vector())

    def commit(self, seat, sequence):
        commit = WindowCommit(sequence, sequence, 1, sequence, 1, 1, 0.5, {}, 0.0, 0.1)
        return self.server.exchange(Arrival(self.sessions[seat], commit, 0), vector(1))

    def round(self, sequence):
        return [self.commit(seat, sequence) for seat in (0, 1)]

    def tell(self, seat, version, *parts):
        for number, part in enumerate(parts):
            message = HandOver(version, number, len(parts))
            self.server.hand_over(self.sessions[seat], message, vector(part))

    def ended_epochs(self):
        return [e.epoch for e in self.server.update(0).events if isinstance(e, EpochEnded)]


def test_the_state_promised_at_the_start_is_given_though_a_newer_one_has_come():
    grid = Grid()
    grid.round(0)
    grid.tell(0, 1, 10, 11, 12)
    late = grid.server.join(1, 1)
    start = grid.start(late)
    assert (start.answer.version, start.answer.newest, start.answer.state_parts) == (1, 1, 2)
    grid.sessions[1] = late
    grid.commit(0, 1)
    grid.commit(1, 1)
    grid.tell(0, 2, 20, 21, 22)
    found = vector()
    for part in (1, 2):
        grid.server.fetch_state(late, part, found)
        np.testing.assert_array_equal(found, vector(10 + part))
    with pytest.raises(RefusedError, match="parts 1 to 2, part 3 came in"):
        grid.server.fetch_state(late, 3, found)


def test_an_epoch_that_waits_for_its_weights_is_told_when_they_have_come():
    grid = Grid()
    grid.round(0)
    answer = grid.round(1)[0].answer
    assert answer.state_wanted
    assert grid.ended_epochs() == []
    with pytest.raises(RefusedError, match="no snapshot 1"):
        grid.server.fetch_center(1, 0)
    grid.tell(1, 2, 7, 8)
    assert grid.ended_epochs() == [1]
    np.testing.assert_array_equal(grid.server.fetch_center(1, 0)[0], vector(7))


def test_who_was_asked_may_die_and_the_next_is_asked():
    grid = Grid()
    grid.round(0)
    assert grid.round(1)[0].answer.state_wanted
    grid.server.lose(grid.sessions[0])
    grid.sessions[0] = grid.server.join(0, 1)
    grid.start(grid.sessions[0])
    assert grid.round(2)[0].answer.state_wanted


def test_a_run_that_its_quorum_has_ended_waits_for_no_weights():
    grid = Grid(quorum=0.5)
    for sequence in range(2):
        grid.commit(0, sequence)
        grid.commit(1, sequence)
    grid.server.lose(grid.sessions[0])
    assert grid.ended_epochs() == []
    grid.server.finish(grid.sessions[1])
    assert grid.ended_epochs() == [1, 2]
    assert grid.server.fetch_center(1, 0)[1] == 2


def test_only_the_newest_connection_steps_and_tells():
    grid = Grid()
    grid.round(0)
    old = grid.sessions[1]
    grid.server.join(1, 1)
    for ask in (
        lambda: grid.server.fetch_step(old, 0, vector()),
        lambda: grid.server.fetch_state(old, 1, vector()),
        lambda: grid.tell(1, 1, 5),
    ):
        with pytest.raises(FencedError):
            ask()


@pytest.mark.parametrize(("version", "value"), [(2, 1.0), (1, np.nan)])
def test_weights_of_the_future_or_not_finite_are_refused(version, value):
    grid = Grid()
    grid.round(0)
    with pytest.raises(RefusedError, match="finite and of version 1 at most"):
        grid.tell(0, version, value)
    assert np.isfinite(grid.server.fetch_center(None, 0)[0]).all()

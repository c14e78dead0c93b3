"""The table of states and deadlines."""

from __future__ import annotations

from typing import get_args

from distkeras_grid.parameter_server.timeouts import (
    STATES,
    Activity,
    state_of,
)


def test_every_state_of_a_seat_has_its_row():
    for status in ("absent", "lost", "joined", "ready", "running"):
        for activity in get_args(Activity):
            found = state_of(status, activity)
            assert found is not None
            assert found.statuses[0][0] == status
    assert state_of("finished", "") is state_of("failed", "") is None


def test_no_state_is_told_twice():
    seen = [place for state in STATES for place in state.statuses]
    assert len(set(seen)) == len(seen)
    assert len({state.name for state in STATES}) == len(STATES)

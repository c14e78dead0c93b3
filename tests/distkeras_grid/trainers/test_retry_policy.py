"""How often a worker that was lost is started again."""

from __future__ import annotations

import pytest

from distkeras_grid.trainers.retry_policy import RetryPolicy


@pytest.mark.parametrize(("each", "submitted"), [(1, 3), (2, 1), (3, 1), (4, 0), (8, 0)])
def test_one_without_progress_fails_four_times_whatever_the_master(each, submitted):
    tries = RetryPolicy(each)
    told = [tries.allows(0, rows=0) for _ in range(5)]
    assert told == [True] * submitted + [False] * (5 - submitted)


def test_one_with_progress_is_always_started_again():
    tries = RetryPolicy(4)
    assert all(tries.allows(0, rows) for rows in range(1, 50))


@pytest.mark.parametrize(("each", "submitted"), [(1, 3), (2, 1), (4, 0)])
def test_failures_count_since_the_last_progress(each, submitted):
    """The one that shows the progress does not count, whatever was before."""
    tries = RetryPolicy(each)
    assert tries.allows(0, 0) == (each < 4)
    told = [tries.allows(0, rows) for rows in (8, *[8] * 4)]
    assert told == [True] + [True] * submitted + [False] * (4 - submitted)


def test_seats_are_counted_apart():
    tries = RetryPolicy(2)
    assert [tries.allows(seat, 0) for seat in (0, 1, 0)] == [True, True, False]


def test_a_run_that_has_gone_back_to_a_checkpoint_begins_to_count_anew():
    tries = RetryPolicy(4)
    assert [tries.allows(0, rows) for rows in (80, 20, 20)] == [True, True, False]

"""How often something that has failed is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.parameter_server.retry_policy import MOST_FAILURES, RetryPolicy


@pytest.mark.parametrize(("each", "submitted"), [(1, 3), (2, 1), (3, 1), (4, 0), (8, 0)])
def test_one_without_progress_fails_four_times_whatever_the_master(each, submitted):
    retries = RetryPolicy()
    allowed = [retries.allows(0, 0, each) for _ in range(5)]
    assert allowed == [True] * submitted + [False] * (5 - submitted)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=40), st.integers(1, 4))
def test_only_failures_since_the_last_progress_count_and_each_key_apart(failures, each):
    """Also progress to fewer rows counts: a run that has gone back to a checkpoint."""
    retries, last = RetryPolicy(), {}
    for key, progress in failures:
        before, count = last.get(key, (0, 0))
        last[key] = progress, each + (count if progress == before else 0)
        allowed = progress != before or last[key][1] < MOST_FAILURES
        assert retries.allows(key, progress, each) == allowed
        assert retries.exhausted(key, progress) == (not allowed)
        assert not retries.exhausted(key, progress + 1)
        assert not retries.exhausted(3, progress)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.rules import CommitInfo, ElasticRule

INFO = CommitInfo(0, 1, 1, 0)


def exchange(rule, center, x):
    payload = np.empty_like(x)
    rule.propose(x, x, 1, payload)
    rule.fold(center, payload, INFO, [])
    rule.adopt(x, payload, x)


@given(
    order=st.lists(st.integers(0, 3), max_size=8),
    values=st.lists(st.integers(-1000, 1000), min_size=5, max_size=5),
)
def test_the_sum_of_workers_and_center_is_conserved(order, values):
    """Exactly, for any interleaving: integers and alpha = 1/4 stay dyadic."""
    workers = [np.array([value], np.float64) for value in values[:4]]
    center = np.array([values[4]], np.float64)
    for seat in order:
        exchange(ElasticRule(alpha=0.25), center, workers[seat])
    assert sum(worker[0] for worker in workers) + center[0] == sum(values)


def test_alpha_zero_leaves_both_alone():
    center, x = np.array([1], np.float32), np.array([5], np.float32)
    exchange(ElasticRule(alpha=0), center, x)
    assert (center[0], x[0]) == (1, 5)


def test_alpha_one_half_meets_in_the_middle():
    center, x = np.array([1], np.float32), np.array([5], np.float32)
    exchange(ElasticRule(alpha=0.5), center, x)
    assert (center[0], x[0]) == (3, 3)


def test_alpha_one_swaps():
    center, x = np.array([1], np.float32), np.array([5], np.float32)
    exchange(ElasticRule(alpha=1), center, x)
    assert (center[0], x[0]) == (5, 1)


@pytest.mark.parametrize(("workers", "alpha"), [(8, 0.5), (20, 0.5), (40, 0.05)])
def test_the_atomic_exchange_converges_where_two_messages_diverge(workers, alpha):
    """All workers at once, learning rate times curvature 0.05, window 1."""

    def distance(atomic):
        center, x = np.array([1.0]), np.linspace(-1, 1, workers)
        for _ in range(200):
            x *= 0.95
            stale = center.copy()
            for seat in range(workers):
                if atomic:
                    exchange(ElasticRule(alpha=alpha), center, x[seat : seat + 1])
                else:
                    e = alpha * (x[seat] - stale)
                    center += e
                    x[seat] -= e[0]
        return abs(center[0])

    assert distance(atomic=True) < 1e-2
    assert distance(atomic=False) > 1e2

"""Accumulated gradient normalization, and its form that counts the distance."""

import numpy as np
import pytest

from distkeras_grid.rules import (
    AccumulatedGradientRule,
    CommitInfo,
    DistanceRule,
    DownpourRule,
)
from tests.invariants.quadratics import ConstantGradient, descend, fixed, trained

ROWS = np.random.default_rng(0).normal(size=(3, 12, 4)).astype(np.float32)


def centers(*rules, rows=ROWS, **how):
    how = {"start": np.ones(4), "rate": 0.1, "dtype": np.float32, **how}
    return [trained(rule, rows, times="exponential", **how).center for rule in rules]


def test_A1_with_window_one_it_is_downpour():
    ours, downpour = centers(AccumulatedGradientRule(), DownpourRule())
    assert (ours == downpour).all()


@pytest.mark.parametrize("window", [2, 3, 6])
def test_A2_one_worker_is_lookahead(window):
    """Zhang et al. 2019: slow weights move by 1/k of the way to the fast ones."""
    found = trained(AccumulatedGradientRule(), ROWS[:1], start=np.ones(4), rate=0.1, window=window)
    slow = np.ones(4)
    for part in np.split(ROWS[0].astype(np.float64), len(ROWS[0]) // window):
        slow = slow + (descend(slow, part, rate=0.1) - slow) / window
    np.testing.assert_allclose(found.center, slow, rtol=1e-14)


@pytest.mark.parametrize("window", [2, 5])
def test_A2_one_worker_on_a_parabola_has_a_closed_form(window):
    curvature = np.array([1.0, 0.5, 0.125])
    found = trained(
        AccumulatedGradientRule(),
        [fixed(np.zeros(3), 10 * window)],
        start=np.ones(3),
        curvature=curvature,
        rate=0.25,
        window=window,
    )
    expected = (1 - (1 - (1 - 0.25 * curvature) ** window) / window) ** 10
    np.testing.assert_allclose(found.center, expected, rtol=1e-13)


@pytest.mark.parametrize("window", [1, 2, 4, 8])
def test_A3_a_constant_gradient_moves_the_center_by_the_rate_whatever_the_window(window):
    learners = [ConstantGradient(np.array([0.0]), 0.5) for _ in range(2)]
    rows = [fixed([0.0], 3 * window)] * 2
    found = trained(AccumulatedGradientRule(), rows, learners=learners, window=window)
    assert found.center[0] == -0.5 * 6


def test_A4_it_is_downpour_scaled_by_the_window():
    ours, downpour = centers(AccumulatedGradientRule(), DownpourRule(0.25), window=4)
    assert (ours == downpour).all()


def test_A5_a_partial_window_is_divided_by_the_steps_it_took():
    found = trained(AccumulatedGradientRule(), [fixed([8.0], 6)], window=4)
    first = descend([0.0], fixed([8.0], 4)) / 4
    assert found.center == first + (descend(first, fixed([8.0], 2)) - first) / 2


def test_A6_a_converged_window_commits_what_is_left_over_its_length():
    moved = [
        trained(AccumulatedGradientRule(), [fixed([8.0], window)], window=window).center[0]
        for window in (64, 256)
    ]
    assert moved == [8.0 / 64, 8.0 / 256]


@pytest.mark.parametrize("window", [1, 3])
def test_A7_without_staleness_the_distance_changes_nothing(window):
    ours, plain = centers(
        DistanceRule(gamma=1e-4), AccumulatedGradientRule(), rows=ROWS[:1], window=window
    )
    assert (ours == plain).all()


def test_A8_the_farther_the_center_has_moved_the_less_a_commit_counts():
    distances = np.array([0.0, 0.001, -0.01, 0.1, -1.0, 100.0])
    center, payload = distances.copy(), np.ones(6)
    DistanceRule(gamma=1e-4).fold(center, payload, CommitInfo(0, 1, 1, 0), [np.zeros(6)])
    factors = center - distances
    assert factors[0] == 1.0
    assert (np.diff(factors) < 0).all()
    assert (factors > 0).all()
    np.testing.assert_allclose(factors[2], 0.5, rtol=1e-12)


def test_A8_the_distance_is_that_since_the_workers_own_last_reply():
    """Two workers in turns on a constant gradient: each is one commit behind."""
    learners = [ConstantGradient(np.array([0.0]), 0.5) for _ in range(2)]
    found = trained(DistanceRule(gamma=0.25), [fixed([0.0], 2)] * 2, learners=learners)
    first = -0.5
    second = first - 0.5 / (1 + first**2 / 0.25)
    third = second - 0.5 / (1 + (second - first) ** 2 / 0.25)
    fourth = third - 0.5 / (1 + (third - second) ** 2 / 0.25)
    np.testing.assert_allclose(found.center[0], fourth, rtol=1e-15)

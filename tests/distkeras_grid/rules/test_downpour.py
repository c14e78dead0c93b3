"""The invariants of the delta rules, on a quadratic loss with plain SGD."""

import numpy as np
import pytest

from distkeras_grid.rules import AccumulatedGradientRule, CommitInfo, DownpourRule

RATE = np.float32(0.125)
CURVATURE = np.array([1.0, 0.5, 2.0], np.float32)


def train(start, steps):
    """Plain SGD on ``0.5 h x^2``."""
    x = start.copy()
    for _ in range(steps):
        x -= RATE * (CURVATURE * x)
    return x


def exchange(rule, center, before, after, steps):
    payload = np.empty_like(center)
    rule.propose(before, after, steps, payload)
    rule.fold(center, payload, CommitInfo(0, steps, steps, 0), [])
    start = np.empty_like(center)
    rule.adopt(after, payload, start)
    return start


def run(rule, windows):
    """One worker; returns the center."""
    center = np.array([1.0, -2.0, 3.0], np.float32)
    before = center.copy()
    for steps in windows:
        before = exchange(rule, center, before, train(before, steps), steps)
        np.testing.assert_array_equal(before, center)
    return center


def test_one_worker_with_window_one_is_sequential_sgd():
    start = np.array([1.0, -2.0, 3.0], np.float32)
    np.testing.assert_array_almost_equal_nulp(
        run(DownpourRule(), [1] * 50), train(start, 50), nulp=50
    )


def test_accumulated_gradients_with_window_one_are_downpour_bit_for_bit():
    np.testing.assert_array_equal(
        run(AccumulatedGradientRule(), [1] * 50), run(DownpourRule(), [1] * 50)
    )


@pytest.mark.parametrize("window", [2, 5, 12])
def test_accumulated_gradients_of_one_worker_are_lookahead(window):
    """Zhang et al. 2019: slow weights move by 1/k of the way to the fast ones."""
    slow = np.array([1.0, -2.0, 3.0], np.float32)
    for _ in range(20):
        slow = slow + (train(slow, window) - slow) / np.float32(window)
    np.testing.assert_array_equal(run(AccumulatedGradientRule(), [window] * 20), slow)


def test_accumulated_gradients_are_downpour_scaled_by_the_window():
    np.testing.assert_array_equal(
        run(AccumulatedGradientRule(), [4] * 10), run(DownpourRule(commit_scale=0.25), [4] * 10)
    )


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_a_constant_gradient_moves_the_center_by_one_step_whatever_the_window(steps):
    center = np.zeros(3, np.float32)
    after = np.full(3, -steps * 0.5, np.float32)
    exchange(AccumulatedGradientRule(), center, np.zeros(3, np.float32), after, steps)
    np.testing.assert_array_equal(center, np.full(3, -0.5, np.float32))


def test_a_partial_window_is_divided_by_the_steps_it_took():
    center = np.zeros(1, np.float32)
    exchange(AccumulatedGradientRule(), center, center.copy(), np.array([6], np.float32), 3)
    assert center[0] == 2


def test_folds_commute_and_add_up_exactly():
    """Dyadic numbers: the center is the start plus all that was pushed, in any order."""
    commits = np.random.default_rng(0).integers(-64, 64, (20, 3)).astype(np.float32) / 8
    centers = []
    for order in (range(20), reversed(range(20))):
        center = np.ones(3, np.float32)
        for number in order:
            DownpourRule().fold(center, commits[number].copy(), CommitInfo(number, 1, 1, 0), [])
        centers.append(center)
    np.testing.assert_array_equal(*centers)
    np.testing.assert_array_equal(centers[0], 1 + commits.sum(axis=0))

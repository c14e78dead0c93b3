"""Section 0.3: workers in turns on a parabola are stable up to the bound on a rule's gain.

With n workers in turn, each commit was computed n - 1 commits ago. A commit moves the center by a
share of its distance to the minimum, the gain; the recursion is that of a delayed first-order
difference equation (Levin and May, Theoretical Population Biology 9, 1976).
"""

import math

import numpy as np
import pytest

from distkeras_grid.rules import AccumulatedGradientRule, DownpourRule, DynamicRateRule
from tests.invariants.quadratics import build, fixed


def delay_bound(workers):
    """The gain below which so many workers in turn are stable."""
    return 2 * math.sin(math.pi / (2 * (2 * workers - 1)))


def gain_of(rule, window, workers):
    """The share of the distance that a commit covers, where its window covers the whole of it."""
    if isinstance(rule, AccumulatedGradientRule):
        return 1 / window
    return 1 / workers if isinstance(rule, DynamicRateRule) else rule.commit_scale


def step_share(reached, window):
    """``eta h`` with which a window covers this share of the way: ``1 - (1 - eta h)^k``."""
    return 1 - math.copysign(abs(1 - reached) ** (1 / window), 1 - reached)


def grows(rule, workers, window, shares, folds):
    """Whether the weights grow, for each ``eta h``.

    The coordinates do not know of each other: one run tells of all.
    """
    rows = fixed(np.zeros(len(shares)), window * math.ceil(folds / workers))
    simulation = build(
        rule,
        [rows] * workers,
        start=np.ones(len(shares)),
        curvature=np.array(shares),
        rate=1.0,
        window=window,
    )
    simulation.run()
    held = [worker.before for worker in simulation.workers]
    return (np.abs(held).max(axis=0) > 1.0).tolist()


@pytest.mark.parametrize(
    ("rule", "workers", "window"),
    [
        pytest.param(DownpourRule(), 1, 1, id="downpour-1"),
        pytest.param(DownpourRule(), 2, 3, id="downpour-2"),
        pytest.param(DownpourRule(), 5, 3, id="downpour-5"),
        pytest.param(DownpourRule(), 10, 1, id="downpour-10"),
        pytest.param(DownpourRule(0.25), 10, 1, id="downpour-scaled"),
        pytest.param(AccumulatedGradientRule(), 5, 2, id="accumulated-5"),
        pytest.param(AccumulatedGradientRule(), 10, 5, id="accumulated-10"),
        pytest.param(DynamicRateRule(), 5, 1, id="dynamic-rate-5"),
        pytest.param(DynamicRateRule(), 10, 1, id="dynamic-rate-10"),
    ],
)
@pytest.mark.full
def test_0_3_a_gain_of_97_percent_of_the_bound_is_stable_and_103_percent_is_not(
    rule, workers, window
):
    whole = gain_of(rule, window, workers)
    reached = [factor * delay_bound(workers) / whole for factor in (0.97, 1.03)]
    shares = [step_share(share, window) for share in reached]
    assert grows(rule, workers, window, shares, folds=150 * workers) == [False, True]


@pytest.mark.parametrize(("workers", "window"), [(5, 3), (10, 7)])
def test_0_3_accumulated_gradients_are_stable_from_a_window_of_one_over_the_bound(workers, window):
    assert window >= 1 / delay_bound(workers) > window - 1
    rule, shares = AccumulatedGradientRule(), [0.1, 0.5, 0.9, 0.999]
    assert grows(rule, workers, window, shares, folds=40 * workers) == [False] * 4


@pytest.mark.parametrize(
    ("workers", "expected"), [(1, 2.0), (5, 0.347), (10, 0.165), (20, 0.0805), (40, 0.0398)]
)
def test_0_3_the_bound_is_that_of_the_table(workers, expected):
    assert delay_bound(workers) == pytest.approx(expected, rel=5e-3)

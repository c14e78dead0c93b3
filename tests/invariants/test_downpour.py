"""Downpour, with plain commits and with Adagrad on the server.

D2 and D3 tell apart how often workers push and how often they fetch; one exchange does both here.
"""

import numpy as np
import pytest

from distkeras_grid.rules import AdagradRule, CommitInfo, DownpourRule
from tests.invariants.quadratics import build, descend, fixed, trained

TARGETS = [fixed([8.0, -4.0], 5), fixed([0.0, 16.0], 5), fixed([-8.0, 4.0], 5)]


@pytest.mark.parametrize("window", [1, 3])
def test_D1_one_worker_is_sequential_sgd(window):
    found = trained(DownpourRule(), [fixed([8.0, -4.0], 10)], start=(1.0, 2.0), window=window)
    assert (found.center == descend([1.0, 2.0], fixed([8.0, -4.0], 10))).all()


def test_D1_one_worker_is_sequential_sgd_to_one_unit_in_the_last_place():
    """Real numbers: the delta is rounded once more, when it is added."""
    rows = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
    start = np.random.default_rng(1).normal(size=20).astype(np.float32)
    found = trained(DownpourRule(), [rows[:1]], start=start, rate=0.1, dtype=np.float32)
    once = descend(start, rows[:1], rate=np.float32(0.1))
    size = np.maximum(abs(start), abs(once))
    assert (abs(found.center - once) <= np.spacing(size)).all()


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_D4_the_center_is_the_start_plus_all_that_was_computed(seed, window):
    """Any interleaving; windows that are not full at the end are in it."""
    found = trained(
        DownpourRule(), TARGETS, start=(1.0, 2.0), window=window, times="exponential", seed=seed
    )
    moved = sum(learner.moved for learner in found.learners)
    assert (found.center == np.array([1.0, 2.0]) + moved).all()
    assert sum(record.steps for record in found.history.records) == 15
    assert found.history.samples == 15


def test_D5_folds_commute():
    commits = np.random.default_rng(0).integers(-64, 64, (20, 3)).astype(np.float32) / 8
    centers = []
    for order in (range(20), reversed(range(20))):
        center = np.ones(3, np.float32)
        for number in order:
            DownpourRule().fold(center, commits[number].copy(), CommitInfo(number, 1, 1, 0), [])
        centers.append(center)
    assert (centers[0] == centers[1]).all()
    assert (centers[0] == 1 + commits.sum(axis=0)).all()


def test_D6_the_first_push_to_adagrad_moves_every_weight_by_the_rate():
    rule = AdagradRule(rate=0.25, initial=0.0, epsilon=0.0)
    found = trained(rule, [fixed([8.0, -4.0, 0.0], 1)], start=(1.0, 2.0, 0.0))
    assert found.center.tolist() == [1.25, 1.75, 0.0]


def test_D7_one_worker_is_adagrad():
    """In the form of Keras: G starts at 0.1, epsilon inside the root."""
    rows = np.random.default_rng(0).normal(size=(40, 5))
    found = trained(AdagradRule(rate=0.1), [rows], start=np.zeros(5))
    x, squares = np.zeros(5), np.full(5, 0.1)
    for target in rows:
        gradient = x - target
        squares += gradient**2
        x -= 0.1 * gradient / np.sqrt(squares + 1e-7)
    np.testing.assert_allclose(found.center, x, rtol=1e-12)


def test_D7_adagrad_sums_the_gradients_of_a_window_at_the_workers_own_weights():
    rule = AdagradRule(rate=0.25, initial=0.0, epsilon=0.0)
    simulation = build(rule, [fixed([8.0], 4)], start=(0.0,), window=2)
    simulation.run()
    first = -8.0 + -4.0
    second = sum(-8.0 * 0.5**step + 0.25 * 0.5**step for step in range(2))
    assert simulation.center[0] == 0.25 - 0.25 * second / np.sqrt(first**2 + second**2)

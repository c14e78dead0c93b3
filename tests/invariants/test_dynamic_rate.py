"""Commits that count less the staler they are."""

import numpy as np

from distkeras_grid.rules import CommitInfo, DownpourRule, DynamicRateRule
from tests.invariants.quadratics import ConstantGradient, fixed, trained


def constant(workers, rounds):
    learners = [ConstantGradient(np.array([0.0]), 1.0) for _ in range(workers)]
    return trained(DynamicRateRule(), [fixed([0.0], rounds)] * workers, learners=learners)


def test_Y1_one_worker_is_downpour():
    rows = np.random.default_rng(0).normal(size=(1, 20, 4)).astype(np.float32)
    runs = [
        trained(rule, rows, start=np.ones(4), rate=0.1, window=3, dtype=np.float32)
        for rule in (DynamicRateRule(), DownpourRule())
    ]
    assert (runs[0].center == runs[1].center).all()
    assert {record.staleness for record in runs[0].history.records} == {0}


def test_Y2_a_lockstep_round_has_the_weights_of_the_harmonic_series():
    """All start from one center: 1, 1/2, ..., 1/6, together 2.45."""
    found = constant(6, rounds=1)
    assert [record.staleness for record in found.history.records] == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(-found.center[0], 2.45, rtol=1e-15)


def test_Y2_in_turns_each_commit_weighs_one_over_the_workers():
    one, five = (constant(4, rounds) for rounds in (1, 5))
    assert {record.staleness for record in five.history.records[4:]} == {3}
    np.testing.assert_allclose(one.center[0] - five.center[0], 4.0, rtol=1e-15)


def test_Y4_the_order_of_commits_matters():
    results = []
    for order in ([3.0, 8.0], [8.0, 3.0]):
        center = np.zeros(1)
        for staleness, value in enumerate(order):
            info = CommitInfo(staleness, 1, 1, staleness)
            DynamicRateRule().fold(center, np.array([value]), info, [])
        results.append(center[0])
    assert results == [7.0, 9.5]

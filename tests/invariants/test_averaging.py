"""Parameter averaging and local SGD.

L7 is of runs that change from the one to the other, which no trainer here does.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.rules import AveragingRule, CommitInfo
from tests.invariants.quadratics import descend, fixed, trained


def average(vectors, samples):
    center = np.zeros_like(vectors[0])
    infos = [CommitInfo(seat, 1, count, 0) for seat, count in enumerate(samples)]
    AveragingRule().aggregate(center, [vector.copy() for vector in vectors], infos)
    return center


def test_L1_with_window_one_it_is_synchronous_sgd():
    """Each step goes by the mean of the gradients."""
    rows = np.random.default_rng(0).integers(-32, 32, (4, 6, 3)).astype(float)
    found = trained(AveragingRule(), rows, start=np.ones(3))
    center = np.ones(3)
    for step in range(6):
        gradients = [center - rows[worker][step] for worker in range(4)]
        center = center - 0.5 * np.mean(gradients, axis=0)
    assert (found.center == center).all()


@pytest.mark.parametrize("window", [1, 3, 20])
def test_L2_one_worker_is_sequential_sgd(window):
    rows = np.random.default_rng(0).normal(size=(1, 20, 4))
    found = trained(AveragingRule(), rows, start=np.ones(4), rate=0.1, window=window, momentum=0.5)
    expected = descend(np.ones(4), rows[0], rate=0.1, momentum=0.5)
    np.testing.assert_allclose(found.center, expected, rtol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_L3_on_a_common_quadratic_the_window_does_not_matter(momentum):
    """Local steps and means commute, also those of momentum that stays with the workers."""
    targets = np.random.default_rng(4).normal(size=(3, 2))
    centers = [
        trained(
            AveragingRule(),
            [fixed(target, 42) for target in targets],
            start=np.zeros(2),
            curvature=np.array([1.0, 0.5]),
            rate=0.1,
            momentum=momentum,
            window=window,
        ).center
        for window in (1, 7, 21)
    ]
    np.testing.assert_allclose(centers[1], centers[0], rtol=1e-11)
    np.testing.assert_allclose(centers[2], centers[0], rtol=1e-11)


def test_L4_the_mean_of_identical_replicas_is_the_replica():
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    assert (average([x] * 7, [3, 1, 4, 1, 5, 9, 2]) == x).all()


def test_L4_identical_workers_are_one_worker():
    rows = np.random.default_rng(0).normal(size=(1, 12, 50)).astype(np.float32)
    runs = [
        trained(
            AveragingRule(),
            np.repeat(rows, workers, axis=0),
            start=np.ones(50),
            rate=0.1,
            dtype=np.float32,
            window=3,
        )
        for workers in (1, 3)
    ]
    assert (runs[0].center == runs[1].center).all()


def test_L5_averaging_twice_without_training_changes_nothing():
    vectors = np.random.default_rng(2).normal(size=(4, 10)).astype(np.float32)
    once = average(vectors, [1, 2, 3, 4])
    assert (average([once] * 4, [1, 2, 3, 4]) == once).all()


def test_L5_rounds_without_steps_change_nothing():
    start = np.random.default_rng(2).normal(size=10).astype(np.float32)
    rows = np.random.default_rng(3).normal(size=(4, 5, 10))
    found = trained(AveragingRule(), rows, start=start, rate=0.0, dtype=np.float32)
    assert found.version == 5
    assert (found.center == start).all()


@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(1, 50)), min_size=1, max_size=6))
def test_L6_the_center_stays_among_the_replicas(pairs):
    vectors = [np.array([value], np.float32) for value, _ in pairs]
    center = average(vectors, [samples for _, samples in pairs])[0]
    values = [value for value, _ in pairs]
    assert min(values) - 1e-5 <= center <= max(values) + 1e-5


def test_one_shot_averages_once_at_the_end():
    rows = np.random.default_rng(0).integers(-32, 32, (4, 6, 3)).astype(float)
    found = trained(AveragingRule(), rows, start=np.ones(3), window=6)
    assert found.version == 1
    ends = [descend(np.ones(3), rows[worker]) for worker in range(4)]
    assert (found.center == np.mean(ends, axis=0)).all()

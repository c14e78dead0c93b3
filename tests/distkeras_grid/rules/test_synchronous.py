import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.rules import AveragingRule, CommitInfo

RULE = AveragingRule()


def average(vectors, samples):
    center = np.zeros_like(vectors[0])
    infos = [CommitInfo(seat, 1, count, 0) for seat, count in enumerate(samples)]
    RULE.combine(center, [vector.copy() for vector in vectors], infos)
    return center


def test_the_mean_of_identical_replicas_is_the_replica():
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    np.testing.assert_array_equal(average([x] * 7, [3, 1, 4, 1, 5, 9, 2]), x)


def test_one_worker_replaces_the_center():
    x = np.random.default_rng(1).normal(size=10).astype(np.float32)
    np.testing.assert_array_equal(average([x], [5]), x)


def test_averaging_twice_without_training_changes_nothing():
    vectors = np.random.default_rng(2).normal(size=(4, 10)).astype(np.float32)
    once = average(vectors, [1, 2, 3, 4])
    np.testing.assert_array_equal(average([once] * 4, [1, 2, 3, 4]), once)


def test_weights_are_samples():
    """A mean over rows is the mean over batches of 10 and 54 only if these are weighted."""
    rows = np.random.default_rng(3).normal(size=(64, 5)).astype(np.float32)
    parts = [rows[:10].mean(axis=0), rows[10:].mean(axis=0)]
    np.testing.assert_allclose(average(parts, [10, 54]), rows.mean(axis=0), atol=1e-6)


@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(1, 50)), min_size=1, max_size=6))
def test_the_center_stays_among_the_replicas(pairs):
    vectors = [np.array([value], np.float32) for value, _ in pairs]
    center = average(vectors, [samples for _, samples in pairs])[0]
    values = [value for value, _ in pairs]
    assert min(values) - 1e-5 <= center <= max(values) + 1e-5


def test_on_a_common_quadratic_the_window_does_not_matter():
    """Local steps and averages commute when all workers share one curvature."""
    curvature = np.array([1.0, 0.5], np.float64)
    targets = np.random.default_rng(4).normal(size=(3, 2))
    results = []
    for window in (1, 7, 21):
        center = np.zeros(2)
        for _ in range(42 // window):
            replicas = []
            for target in targets:
                x = center.copy()
                for _ in range(window):
                    x -= 0.1 * curvature * (x - target)
                replicas.append(x)
            center = average(replicas, [1, 1, 1])
        results.append(center)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-12)
    np.testing.assert_allclose(results[2], results[0], rtol=1e-12)

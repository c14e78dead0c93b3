import numpy as np

from distkeras_grid.rules.statistics import fold_statistics


def test_a_worker_moves_them_by_its_share():
    center, payload = np.array([1.0], np.float32), np.array([5.0], np.float32)
    fold_statistics(center, payload, workers=4)
    assert (center[0], payload[0]) == (2, 2)


def test_a_variance_stays_positive():
    """The sum of eight workers' falls from 1 to 0.2 would be below zero."""
    center = np.array([1.0], np.float32)
    for _ in range(8):
        fold_statistics(center, np.array([0.2], np.float32), workers=8)
        assert 0.2 <= center[0] <= 1

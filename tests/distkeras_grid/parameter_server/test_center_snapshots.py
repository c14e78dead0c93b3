"""Copies of the center: when each is made, and how long it is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

from distkeras_grid.errors import RefusedError
from distkeras_grid.parameter_server.center_snapshots import Snapshots


def vector(value):
    return np.full(2, value, np.float32)


@pytest.mark.parametrize(("per_epoch", "epochs"), [(1, (1, 2)), (2, (0.5, 1)), (4, (0.25, 0.5))])
def test_a_snapshot_waits_for_the_weights_of_its_own_version(per_epoch, epochs):
    snapshots = Snapshots(per_epoch)
    assert not snapshots.is_waiting
    snapshots.wait_for([1], 3)
    snapshots.wait_for([2], 5)
    assert snapshots.is_waiting
    assert snapshots.first_epoch_missing == epochs[0]
    snapshots.on_weights(2, vector(2))
    assert snapshots.first_epoch_missing == epochs[0]
    snapshots.on_weights(3, vector(3))
    np.testing.assert_array_equal(snapshots.get(1), vector(3))
    assert snapshots.first_epoch_missing == epochs[1]
    with pytest.raises(RefusedError):
        snapshots.get(2)
    snapshots.on_weights(9, vector(9))
    np.testing.assert_array_equal(snapshots.get(2), vector(9))
    assert not snapshots.is_waiting
    assert snapshots.first_epoch_missing == math.inf


def test_a_run_without_snapshots_misses_none():
    assert Snapshots(0).first_epoch_missing == math.inf

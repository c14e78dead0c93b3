"""Copies of the center: when each is made, and how long it is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

from distkeras_grid.errors import RefusedError
from distkeras_grid.parameter_server.center_snapshots import IN_MEMORY, Snapshots


def vector(value):
    return np.full(2, value, np.float32)


def test_a_snapshot_is_a_copy_of_the_center_as_it_was():
    snapshots, center = Snapshots(2), vector(1)
    snapshots.take([1, 2], center)
    center[:] = 5
    np.testing.assert_array_equal(snapshots.give(2), vector(1))
    with pytest.raises(RefusedError):
        snapshots.give(3)


@pytest.mark.parametrize(("per_epoch", "epochs"), [(1, (1, 2)), (2, (0.5, 1)), (4, (0.25, 0.5))])
def test_a_snapshot_waits_for_the_weights_of_its_own_version(per_epoch, epochs):
    snapshots = Snapshots(per_epoch)
    assert not snapshots.awaits
    snapshots.wait_for([1], 3)
    snapshots.wait_for([2], 5)
    assert snapshots.awaits
    assert snapshots.first_epoch_missing == epochs[0]
    snapshots.arrive(2, vector(2))
    assert snapshots.first_epoch_missing == epochs[0]
    snapshots.arrive(3, vector(3))
    np.testing.assert_array_equal(snapshots.give(1), vector(3))
    assert snapshots.first_epoch_missing == epochs[1]
    with pytest.raises(RefusedError):
        snapshots.give(2)
    snapshots.arrive(9, vector(9))
    np.testing.assert_array_equal(snapshots.give(2), vector(9))
    assert not snapshots.awaits
    assert snapshots.first_epoch_missing == math.inf


def test_what_was_given_is_kept_until_a_later_one_is_asked_for():
    """The answer may be lost, and asked for again."""
    snapshots = Snapshots(1)
    snapshots.take([1, 2], vector(1))
    snapshots.give(1)
    snapshots.give(1)
    np.testing.assert_array_equal(snapshots.give(2), vector(1))
    with pytest.raises(RefusedError):
        snapshots.give(1)
    np.testing.assert_array_equal(snapshots.give(2), vector(1))


def test_all_but_the_first_are_spilled_until_they_are_fetched():
    spilled = []

    def spill(center):
        spilled.append(int(center[0]))
        return center.copy()

    snapshots = Snapshots(1, spill)
    for number in range(1, 201):
        snapshots.take([number], vector(number))
    assert spilled == list(range(1 + IN_MEMORY, 201))
    for number in range(1, 201):
        for _ in range(2):
            np.testing.assert_array_equal(snapshots.give(number), vector(number))
        assert len(snapshots._made) == 201 - number
    # There is room in memory again.
    snapshots.take([201], vector(201))
    assert spilled[-1] == 200


def test_what_the_driver_has_passed_over_is_dropped():
    """One of several servers may be an epoch behind: the driver takes its center as it is."""
    snapshots = Snapshots(1)
    snapshots.take([1, 2], vector(1))
    with pytest.raises(RefusedError):
        snapshots.give(4)
    snapshots.take([3, 4], vector(3))
    assert list(snapshots._made) == [4]
    np.testing.assert_array_equal(snapshots.give(4), vector(3))


def test_a_run_without_snapshots_misses_none():
    assert Snapshots(0).first_epoch_missing == math.inf

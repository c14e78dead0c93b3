"""Squares against polygons, compared with a fine raster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from data_prep.geometry.polygons import are_inside, intersects, overlap_area

NUMBERS = st.integers(0, 40).map(float)
RINGS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=7).map(np.array)


def inside(points, ring):
    """Winding by hand, another way than in the code under test: angles around each point."""
    turns = np.zeros(len(points))
    for (ax, ay), (bx, by) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        a, b = np.array([ax, ay]) - points, np.array([bx, by]) - points
        turns += np.arctan2(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0], (a * b).sum(axis=1))
    return np.round(turns / (2 * np.pi)).astype(int) % 2 == 1


@settings(max_examples=150, deadline=None)
@given(ring=RINGS, x=st.integers(0, 40), y=st.integers(0, 40), side=st.integers(1, 20))
def test_touch_and_within_agree_with_points(ring, x, y, side):
    across, down = np.meshgrid(*(((np.arange(40) + 0.5) / 40 * side,) * 2))
    # Off the lines of the ring, whose corners are whole numbers.
    points = np.stack([across.ravel() + x + 1e-4, down.ravel() + y + 1.7e-4], axis=1)
    found = inside(points, ring)
    at = (np.array([x]), np.array([y]))
    if found.any():
        assert intersects(*at, side, (ring,))[0]
    if not found.all():
        assert not are_inside(*at, side, (ring,))[0]
    if not intersects(*at, side, (ring,))[0]:
        assert not found.any()


def test_thin_and_far_polygons():
    needle = (np.array([[0.0, 5.0], [100.0, 5.2], [0.0, 5.4]]),)
    x, y = np.array([30, 30, 30, 200]), np.array([0, 5, 6, 0])
    assert intersects(x, y, 5, needle).tolist() == [False, True, False, False]
    frame = (
        np.array([[0.0, 0], [100, 0], [100, 100], [0, 100]]),
        np.array([[10.0, 10], [90, 10], [90, 90], [10, 90]]),
    )
    x, y = np.array([20, 5, 0, 10]), np.array([20, 20, 0, 10])
    assert intersects(x, y, 10, frame).tolist() == [False, True, True, False]
    assert are_inside(x, y, 10, frame).tolist() == [False, False, True, False]
    assert intersects(x, y, 10, frame, margin=1).tolist() == [False, True, True, True]


@given(x=st.floats(-30, 60), y=st.floats(-30, 60), side=st.floats(1, 50))
def test_overlap_with_a_rectangle(x, y, side):
    ring = np.array([[0.0, 0], [30, 0], [30, 20], [0, 20]])
    across = max(0.0, min(x + side, 30) - max(x, 0))
    down = max(0.0, min(y + side, 20) - max(y, 0))
    assert overlap_area(x, y, side, ring) == pytest.approx(across * down, abs=1e-6)
    assume(across * down == 0)
    assert overlap_area(x, y, side, ring) == pytest.approx(0)

"""Squares and polygons: pure arithmetic, exact up to floating-point rounding.

A polygon is one ring of corners or several, as in GeoJSON: a point inside an odd number of rings is
in the polygon, so a ring within a ring is a hole. A square that only shares a border with a polygon
does not touch it, because they have no pixel in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ring = NDArray[np.float64]
Polygon = tuple[Ring, ...]
Mask = NDArray[np.bool_]
Numbers = NDArray[Any]

# Number of edges that are compared with all squares at once.
EDGES_AT_ONCE = 64


def intersects(x: Numbers, y: Numbers, side: float, polygon: Polygon, margin: float = 0.0) -> Mask:
    """Tell which squares have a point in common with a polygon.

    Examples
    --------
    >>> square = (np.array([[10.0, 0], [20, 0], [20, 10], [10, 10]]),)
    >>> intersects(np.array([0, 1, 12]), np.array([0, 0, 2]), 10, square)
    array([False,  True,  True])
    """
    crossed = _crossed(x - margin, y - margin, side + 2 * margin, polygon)
    return crossed | _contains(x + side / 2, y + side / 2, polygon)


def are_inside(x: Numbers, y: Numbers, side: float, polygon: Polygon, margin: float = 0.0) -> Mask:
    """Tell which squares lie wholly in a polygon; see `intersects`."""
    crossed = _crossed(x - margin, y - margin, side + 2 * margin, polygon)
    return ~crossed & _contains(x + side / 2, y + side / 2, polygon)


def overlap_area(x: float, y: float, side: float, ring: Ring) -> float:
    """Return the area that a square and a convex ring have in common.

    Examples
    --------
    >>> overlap_area(5, 5, 10, np.array([[0.0, 0], [10, 0], [10, 10], [0, 10]]))
    25.0
    """
    corners = [(float(a), float(b)) for a, b in ring]
    for axis, limit, sign in ((0, x, 1), (0, x + side, -1), (1, y, 1), (1, y + side, -1)):
        corners = _clipped(corners, axis, limit, sign)
    shifted = corners[1:] + corners[:1]
    twice = sum(a * d - b * c for (a, b), (c, d) in zip(corners, shifted, strict=True))
    return abs(twice) / 2


def _edges(polygon: Polygon) -> tuple[Numbers, Numbers]:
    starts = np.concatenate([np.asarray(ring, dtype=np.float64) for ring in polygon])
    stops = np.concatenate([np.roll(ring, -1, axis=0) for ring in polygon])
    return starts, stops


def _crossed(x: Numbers, y: Numbers, side: float, polygon: Polygon) -> Mask:
    """Tell through the inside of which squares an edge of the polygon passes."""
    starts, stops = _edges(polygon)
    crossed = np.zeros(np.shape(x), dtype=bool)
    for first in range(0, len(starts), EDGES_AT_ONCE):
        start, stop = starts[first : first + EDGES_AT_ONCE], stops[first : first + EDGES_AT_ONCE]
        # Consecutive edges are close together, and far from most squares.
        low = np.minimum(start, stop).min(axis=0)
        high = np.maximum(start, stop).max(axis=0)
        near = (x < high[0]) & (x + side > low[0]) & (y < high[1]) & (y + side > low[1])
        near = np.flatnonzero(near & ~crossed)
        enter_x, leave_x = _passage(x[near], side, start[:, :1], stop[:, :1])
        enter_y, leave_y = _passage(y[near], side, start[:, 1:], stop[:, 1:])
        enter, leave = np.maximum(enter_x, enter_y), np.minimum(leave_x, leave_y)
        crossed[near] = ((enter < leave) & (enter < 1) & (leave > 0)).any(axis=0)
    return crossed


def _passage(low: Numbers, side: float, start: Numbers, stop: Numbers) -> tuple[Numbers, Numbers]:
    """Return between which parts of each edge it lies between the sides of each square."""
    length = stop - start
    straight = length == 0
    safe = np.where(straight, 1.0, length)
    one, other = (low - start) / safe, (low + side - start) / safe
    between = (low < start) & (start < low + side)
    enter = np.where(straight, np.where(between, -np.inf, np.inf), np.minimum(one, other))
    leave = np.where(straight, np.where(between, np.inf, -np.inf), np.maximum(one, other))
    return enter, leave


def _contains(x: Numbers, y: Numbers, polygon: Polygon) -> Mask:
    """Tell which points lie in an odd number of rings."""
    order = np.argsort(y, kind="stable")
    x, y = x[order], y[order]
    mask = np.zeros(x.shape, dtype=bool)
    starts, stops = _edges(polygon)
    # Only edges that span a point's height count; these are not horizontal.
    first = np.searchsorted(y, np.minimum(starts[:, 1], stops[:, 1]))
    last = np.searchsorted(y, np.maximum(starts[:, 1], stops[:, 1]))
    for number in np.flatnonzero(first < last).tolist():
        (ax, ay), (bx, by) = starts[number], stops[number]
        at = slice(first[number], last[number])
        mask[at] ^= x[at] < (bx - ax) * (y[at] - ay) / (by - ay) + ax
    inside = np.zeros(x.shape, dtype=bool)
    inside[order] = mask
    return inside


def _clipped(
    corners: Sequence[tuple[float, float]], axis: int, limit: float, sign: int
) -> list[tuple[float, float]]:
    """Return the part of a convex ring on one side of a horizontal or vertical line."""
    ring: list[tuple[float, float]] = []
    for i, point in enumerate(corners):
        before = corners[i - 1]
        here, there = sign * (point[axis] - limit), sign * (before[axis] - limit)
        if (here >= 0) != (there >= 0):
            part = there / (there - here)
            cut = [before[k] + part * (point[k] - before[k]) for k in (0, 1)]
            cut[axis] = limit
            ring.append((cut[0], cut[1]))
        if here >= 0:
            ring.append(point)
    return ring

"""Which tiles an image has at each angle, and which parts of it no tile shows: no pixels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data_prep.geometry.grid import Positions, RotatedFrame, TileSpec, tile_positions
from data_prep.geometry.polygons import (
    are_inside,
    contains_points,
    intersects,
    overlap_area,
    union_area,
)
from data_prep.geometry.regions import NO_ZONES, Zones

# Pixels beyond a tile's edge from which its outermost pixels are computed.
REACH = {"nearest": 1, "linear": 1, "cubic": 2, "lanczos4": 4}
# Number of points along each side of an image at which coverage is measured.
SAMPLES = 128


@dataclass(frozen=True)
class TileLayout:
    """How the tiles of an image lie, over all angles."""

    tiles: int  # Number of tiles
    excluded: int  # Number of tiles that zones exclude
    # Part of the image that no tile shows at any angle, accurate to 0.5 % of the image
    uncovered: float
    # Part of the image that the tiles of one angle leave out; the mean over the angles
    uncovered_by_angle: float
    empty_angles: int  # Number of angles without a tile


def allowed_positions(
    frame: RotatedFrame, spec: TileSpec, zones: Zones = NO_ZONES
) -> tuple[Positions, int]:
    """Return the positions of the tiles of a frame that keep off all zones.

    `zones`: zones in pixels of the frame's source.
    """
    x, y = tile_positions(frame, spec)
    if not zones or not x.size:
        return (x, y), 0
    mask = np.ones(x.shape, dtype=bool)
    base_x, base_y = frame.to_base((x, y), spec.tile)
    # Only at oblique angles are pixels computed from their neighbours.
    margin = zones.reach + (REACH[spec.interpolation] if frame.base else 0)
    for polygon in zones.turned(frame.source_to_base).excluded:
        mask &= ~intersects(base_x, base_y, spec.tile, polygon, margin)
    if zones.included:
        regions = zones.turned(frame.source_to_base).included
        inside = [are_inside(base_x, base_y, spec.tile, polygon, margin) for polygon in regions]
        mask &= np.any(inside, axis=0)
    return (x[mask], y[mask]), int(x.size - mask.sum())


def lay_out(width: int, height: int, spec: TileSpec, zones: Zones = NO_ZONES) -> TileLayout:
    """Count the tiles of an image over all angles, and measure what no tile shows.

    `width, height`: size of the image, pixels.

    Examples
    --------
    >>> found = lay_out(2272, 1704, TileSpec(angles=[0]))
    >>> found.tiles, round(found.uncovered, 2)
    (192, 0.06)
    """
    # Cached, because most images of a data set have the same size.
    return _lay_out(width, height, spec, zones) if zones else _known(width, height, spec)


@lru_cache(maxsize=64)
def _known(width: int, height: int, spec: TileSpec) -> TileLayout:
    return _lay_out(width, height, spec, NO_ZONES)


def _lay_out(width: int, height: int, spec: TileSpec, zones: Zones) -> TileLayout:
    # In mode "inside" the tiles at quarter turns are those of the base angle.
    is_inside = spec.mode == "inside"
    times = Counter(angle % 90 if is_inside else angle for angle in spec.angles)
    tiles = excluded = empty = 0
    across, down = np.meshgrid(*((np.arange(SAMPLES) + 0.5) / SAMPLES for _ in range(2)))
    points = across.ravel() * width, down.ravel() * height
    shown = np.zeros(points[0].shape, dtype=bool)
    by_angle = 0.0
    for angle, count in times.items():
        frame = RotatedFrame(width, height, angle)
        positions, without = allowed_positions(frame, spec, zones)
        x, y = frame.to_base(positions, spec.tile)
        again = int(spec.include_original and angle == 0)
        tiles += (count + again) * x.size
        excluded += (count + again) * without
        if not x.size:
            empty += count
            by_angle += count
            continue
        mask = contains_points(x, y, spec.tile, *frame.source_to_base(*points))
        shown |= mask
        if spec.edge == "pad":
            # Parts of tiles outside the image do not count.
            by_angle += count * float(1 - mask.mean())
        else:
            by_angle += count * max(0.0, 1 - union_area(x, y, spec.tile) / (width * height))
    total = times.total()
    never = by_angle if total == 1 else float(1 - shown.mean())
    return TileLayout(tiles, excluded, never, by_angle / total, empty)


def outside_parts(frame: RotatedFrame, spec: TileSpec, positions: Positions) -> list[float]:
    """Return which part of each tile lies outside the image; only edge ``pad`` leaves any."""
    x, y = frame.to_base(positions, spec.tile)
    if spec.edge != "pad":
        return [0.0] * x.size
    source, area = frame.source_corners(), float(spec.tile**2)
    shared = (
        overlap_area(left, top, spec.tile, source)
        for left, top in zip(x.tolist(), y.tolist(), strict=True)
    )
    return [max(0.0, round(1 - each / area, 6)) for each in shared]

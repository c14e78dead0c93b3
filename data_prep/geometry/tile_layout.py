"""Which tiles an image has at each angle: no pixels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data_prep.geometry.grid import Positions, RotatedFrame, TileSpec, tile_positions
from data_prep.geometry.polygons import are_inside, intersects, overlap_area
from data_prep.geometry.regions import NO_ZONES, Zones
from distkeras_grid.errors import ConfigurationError

# Pixels beyond a tile's edge from which its outermost pixels are computed.
REACH = {"nearest": 1, "linear": 1, "cubic": 2, "lanczos4": 4}


@dataclass(frozen=True)
class TileLayout:
    """How the tiles of an image lie, over all angles."""

    tiles: int  # Number of tiles
    excluded: int  # Number of tiles that zones exclude
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
    """Count the tiles of an image over all angles.

    `width, height`: size of the image, pixels.

    Examples
    --------
    >>> lay_out(2272, 1704, TileSpec(angles=[0]))
    TileLayout(tiles=192, excluded=0, empty_angles=0)
    """
    # Cached, because most images of a data set have the same size.
    return _lay_out(width, height, spec, zones) if zones else _known(width, height, spec)


def count_tiles(width: int, height: int, spec: TileSpec) -> int:
    """Count the tiles of one image over all angles.

    Parameters
    ----------
    width, height : int
        Size of the image, pixels.
    spec : TileSpec

    Returns
    -------
    int
        0 where the image is smaller than a tile.

    Examples
    --------
    >>> count_tiles(2272, 1704, TileSpec(angles=[0])), count_tiles(2272, 1704, TileSpec.paper())
    (192, 6972)
    """
    if width < 1 or height < 1:
        raise ConfigurationError(f"An image has at least one pixel. Received: {width}x{height}.")
    return lay_out(width, height, spec).tiles


@lru_cache(maxsize=64)
def _known(width: int, height: int, spec: TileSpec) -> TileLayout:
    return _lay_out(width, height, spec, NO_ZONES)


def _lay_out(width: int, height: int, spec: TileSpec, zones: Zones) -> TileLayout:
    # In mode "inside" the tiles at quarter turns are those of the base angle.
    is_inside = spec.mode == "inside"
    times = Counter(angle % 90 if is_inside else angle for angle in spec.angles)
    tiles = excluded = empty = 0
    for angle, count in times.items():
        (x, _), without = allowed_positions(RotatedFrame(width, height, angle), spec, zones)
        again = int(spec.include_original and angle == 0)
        tiles += (count + again) * x.size
        excluded += (count + again) * without
        empty += count * (not x.size)
    return TileLayout(tiles, excluded, empty)


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

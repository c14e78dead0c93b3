"""The share of all tiles that the local sets of a run reach: by a formula, and counted.

A worker that draws ``m`` of ``D`` tiles leaves out a tile with probability ``1 - m / D``. Draws of
``N`` workers in ``K`` iterations are independent: they reach the part ``1 - (1 - m / D)**(N K)``.
Balanced sets draw ``m / C`` of the ``D_c`` tiles of each of ``C`` classes, so large classes are
reached more slowly.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from distkeras_grid.local_sets.sampler import TileSampler
from distkeras_grid.local_sets.tile_index import TileIndex


def expected_coverage(pool: TileIndex, local_train: int, sets: int) -> float:
    """Return the share of a pool's tiles that local training sets are expected to reach.

    It is exact if all images of a class have the same number of tiles, or sets draw from all
    images.

    Examples
    --------
    The run of Kurochkin (GRID'2021), if it drew from all 4,559,688 tiles:

    >>> tiles = TileIndex.of(tiles=[6972] * 654, images=range(654), labels=[0] * 654, classes=1)
    >>> round(expected_coverage(tiles, 6000, sets=18 * 5), 3)
    0.112
    """
    drawn = local_train / pool.classes / pool.class_sizes
    reached = 1 - (1 - drawn) ** sets
    return float(np.average(reached, weights=pool.class_sizes))


def coverage(drawing: TileSampler, sets: Iterable[tuple[int, int]]) -> float:
    """Return the share of the tiles that some local training sets reached."""
    reached = np.zeros(drawing.training.end, np.bool_)
    for iteration, worker in sorted(sets):
        reached[drawing.train(iteration, worker)] = True
    return float(reached.sum() / len(drawing.training))

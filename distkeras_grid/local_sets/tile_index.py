"""The tiles of a data set by class and image, without their pixels.

Tiles have numbers. Those of one image follow each other in runs, so a million tiles of a few
hundred images are a few hundred runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import DataError

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TileIndex:
    """The tiles that sets are drawn from.

    Examples
    --------
    >>> pool = TileIndex.of(tiles=[3, 2, 4], images=[0, 0, 1], labels=[0, 0, 1], classes=2)
    >>> len(pool), pool.of_class(0).tolist(), pool.of_class(1).tolist()
    (9, [0, 1, 2, 3, 4], [5, 6, 7, 8])
    """

    starts: Numbers  # Number of the first tile of each run, shape ``(runs,)``, int64, ascending
    tiles: Numbers  # Number of tiles in each run, shape ``(runs,)``, int64, at least 1
    images: Numbers  # Number of the image of each run, shape ``(runs,)``, int64
    labels: Numbers  # Class of each run, from 0, shape ``(runs,)``, int64
    classes: int  # Number of classes

    def __post_init__(self) -> None:
        columns = (self.starts, self.tiles, self.images, self.labels)
        if len({column.shape for column in columns}) != 1 or self.starts.ndim != 1:
            raise DataError(
                "A pool has a start, a count, an image and a label for each run. Received: shapes "
                f"{[column.shape for column in columns]}."
            )
        if not len(self.starts):
            return
        gaps = self.starts[1:] - self.starts[:-1] - self.tiles[:-1]
        if self.tiles.min() < 1 or self.starts[0] < 0 or (gaps.size and gaps.min() < 0):
            raise DataError("Runs of tiles have at least one tile each and do not overlap.")
        if self.labels.min() < 0 or self.labels.max() >= self.classes:
            raise DataError(
                f"The labels of {self.classes} classes are from 0 to {self.classes - 1}. Received: "
                f"{self.labels.min()} to {self.labels.max()}."
            )

    @classmethod
    def of(
        cls,
        tiles: NDArray[np.int64] | list[int],
        images: NDArray[np.int64] | list[int],
        labels: NDArray[np.int64] | list[int],
        classes: int,
    ) -> Self:
        """Return the pool of runs that follow each other without a gap, from 0."""
        counts = np.asarray(tiles, np.int64)
        starts = np.cumsum(counts) - counts
        return cls(
            starts, counts, np.asarray(images, np.int64), np.asarray(labels, np.int64), classes
        )

    def __len__(self) -> int:
        """How many tiles there are."""
        return int(self.tiles.sum())

    @property
    def end(self) -> int:
        """One more than the number of the last tile."""
        return int(self.starts[-1] + self.tiles[-1]) if len(self.starts) else 0

    @cached_property
    def class_sizes(self) -> Numbers:
        """Tiles of each class, shape ``(classes,)``."""
        return np.bincount(self.labels, self.tiles, self.classes).astype(np.int64)

    def select(self, runs: NDArray[np.bool_]) -> Self:
        """Return the pool of some runs; tiles keep their numbers."""
        starts, tiles, images, labels = (
            column[runs] for column in (self.starts, self.tiles, self.images, self.labels)
        )
        return type(self)(starts, tiles, images, labels, self.classes)

    def of_class(self, label: int) -> Numbers:
        """Return the numbers of all tiles of a class, ascending."""
        mine = self.labels == label
        return expand(self.starts[mine], self.tiles[mine])

    def images_of_class(self, label: int) -> tuple[Numbers, Numbers]:
        """Return the images of a class, ascending, and how many tiles of it each has."""
        mine = self.labels == label
        images, which = np.unique(self.images[mine], return_inverse=True)
        return images, np.bincount(which, self.tiles[mine], len(images)).astype(np.int64)

    def runs_of(self, places: Numbers) -> Numbers:
        """Return the run that each tile is in."""
        runs: Numbers = np.searchsorted(self.starts, places, side="right") - 1
        if places.size and (runs.min() < 0 or (places - self.starts[runs]).min() < 0):
            raise IndexError(f"Tiles are numbered from 0. Received: {places.min()}.")
        if places.size and (places >= self.starts[runs] + self.tiles[runs]).any():
            raise IndexError(f"The pool has no tile {places.max()}. It ends before {self.end}.")
        return runs


def expand(starts: Numbers, counts: Numbers) -> Numbers:
    """Return the numbers of all tiles of runs."""
    offsets = np.cumsum(counts) - counts
    numbers: Numbers = np.arange(int(counts.sum())) + np.repeat(starts - offsets, counts)
    return numbers

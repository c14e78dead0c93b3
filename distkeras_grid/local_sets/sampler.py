"""Draws the tiles of the local sets of an iteration and a worker.

A draw depends only on the pools, the recipe, the seed, the iteration and the worker. So a worker
needs no list of tiles, a repeated attempt draws the same tiles, and the driver can compute what
each worker has drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from distkeras_grid.errors import EmptyDataError
from distkeras_grid.local_sets.tile_index import Numbers, TileIndex
from distkeras_grid.spec import LocalSpec

# The purpose of random numbers: one word of their seed, so that no two purposes share a stream.
_TRAIN, _TEST, _SIDES = range(3)


@dataclass(frozen=True, eq=False)
class TileSampler:
    """The local sets of a run.

    Examples
    --------
    >>> pool = TileIndex.of(tiles=[50] * 4, images=[0, 1, 2, 3], labels=[0, 0, 1, 1], classes=2)
    >>> spec = LocalSpec(local_train=10, local_test=4, test_images="others")
    >>> drawing = TileSampler(pool, pool.select(pool.labels < 0), spec, seed=7, workers=5)
    >>> train, test = drawing.train(3, 0), drawing.test(3, 0)
    >>> np.bincount(pool.labels[pool.runs_of(train)]).tolist()
    [5, 5]
    >>> set(pool.images[pool.runs_of(train)]) & set(pool.images[pool.runs_of(test)])
    set()
    """

    training: TileIndex  # The tiles of the training split
    # The tiles of images that no set trains on; empty where tests come from other images
    held_out: TileIndex
    spec: LocalSpec  # The recipe
    seed: int  # Seed of the run, at least 0
    workers: int  # Number of workers. The sets do not depend on it.

    def __post_init__(self) -> None:
        spec = self.spec
        _check_sizes(self.training, spec.local_train, "local_train")
        if spec.local_test and spec.test_images == "held_out":
            _check_sizes(self.held_out, spec.local_test, "local_test")
        if spec.local_test and spec.test_images == "others":
            for label in range(self.training.classes):
                images, _ = self.training.images_of_class(label)
                if len(images) < 2:
                    raise EmptyDataError(
                        "A local test set comes from images that the local training set does not "
                        f"use, so each class needs at least two. Received: {len(images)} image of "
                        f"class {label}. Add images, or hold some out: test_images='held_out'."
                    )

    def train(self, iteration: int, worker: int) -> Numbers:
        """Return the local training set: tile numbers, in the order of training."""
        return self._set(self.training, self.spec.local_train, _TRAIN, iteration, worker)

    def test(self, iteration: int, worker: int) -> Numbers:
        """Return the local test set, in the form of `train`; shape ``(local_test,)``, int64."""
        pool = self.training if self.spec.test_images == "others" else self.held_out
        return self._set(pool, self.spec.local_test, _TEST, iteration, worker)

    def coverage(self, sets: Iterable[tuple[int, int]]) -> float:
        """Return the share of the tiles that the training sets of (iteration, worker) reached."""
        reached = np.zeros(self.training.end, np.bool_)
        for iteration, worker in sorted(sets):
            reached[self.train(iteration, worker)] = True
        return float(reached.sum() / len(self.training))

    def _set(
        self, pool: TileIndex, size: int, purpose: int, iteration: int, worker: int
    ) -> Numbers:
        if not size:
            return np.empty(0, np.int64)
        words = (self.seed, iteration, worker)
        rng = np.random.default_rng([*words, purpose])
        parts = []
        for label, amount in enumerate(balanced(size, pool.classes, rng)):
            candidates = pool.of_class(label)
            if self.spec.test_images == "others" and self.spec.local_test:
                images = self._images(pool, label, int(amount), purpose, words)
                candidates = candidates[np.isin(pool.images[pool.runs_of(candidates)], images)]
            parts.append(rng.choice(candidates, int(amount), replace=False, shuffle=False))
        return rng.permutation(np.concatenate(parts))

    def _images(
        self, pool: TileIndex, label: int, amount: int, purpose: int, words: tuple[int, ...]
    ) -> Numbers:
        """Return the images of a class from which one of the two sets of an iteration is drawn."""
        spec = self.spec
        images, tiles = pool.images_of_class(label)
        # Both sets need the same order of images.
        order = np.random.default_rng([*words, _SIDES, label]).permutation(len(images))
        share = spec.local_test / (spec.local_train + spec.local_test)
        border = _border(tiles[order], share)
        order = order[:border] if purpose == _TEST else order[border:]
        if tiles[order].sum() < amount:
            raise EmptyDataError(
                f"A local set of {amount} tiles of class {label} cannot be drawn from "
                f"{len(order)} of its {len(images)} images, which have {tiles[order].sum()} tiles. "
                "Ask for smaller sets, or add images."
            )
        return images[order]


def expected_coverage(pool: TileIndex, local_train: int, sets: int) -> float:
    """Return the share of a pool's tiles that local training sets are expected to reach.

    A worker that draws ``m`` of ``D`` tiles leaves out a tile with probability ``1 - m / D``, so
    draws of ``N`` workers in ``K`` iterations reach the part ``1 - (1 - m / D)**(N K)``. Balanced
    sets draw ``m / C`` of the ``D_c`` tiles of each of ``C`` classes. The result is exact if all
    images of a class have the same number of tiles, or sets draw from all images.

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


def balanced(size: int, classes: int, rng: np.random.Generator) -> Numbers:
    """Return how many tiles of each class a set has; random classes have one more than others."""
    amounts = np.full(classes, size // classes)
    amounts[rng.permutation(classes)[: size % classes]] += 1
    return amounts


def digest_of(places: Numbers) -> str:
    """Return the identity of a set: the first 16 digits of the SHA-256 of its sorted numbers."""
    content = np.sort(places).astype("<i8").tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def _border(tiles: Numbers, share: float) -> int:
    """Return how many images (at least one, but not all) have about this share of the tiles."""
    reached = np.cumsum(tiles) / tiles.sum()
    return min(int(np.searchsorted(reached, share - 1e-9)) + 1, len(tiles) - 1)


def _check_sizes(pool: TileIndex, size: int, name: str) -> None:
    """Refuse sets for which a class has too few tiles."""
    largest = -(-size // pool.classes)
    for label, tiles in enumerate(pool.class_sizes.tolist()):
        if tiles < largest:
            raise EmptyDataError(
                f"{name} of {size} asks for up to {largest} tiles of each of {pool.classes} "
                f"classes. Received: {tiles} tiles of class {label}. Ask for smaller sets, or add "
                "images of this class."
            )

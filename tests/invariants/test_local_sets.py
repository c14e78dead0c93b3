"""Local sets, as a grid of desktops drew them: B1 to B6 of what is promised."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import TileSpec
from data_prep.geometry.regions import NO_ZONES
from data_prep.on_the_fly.tile_index import frames_of
from distkeras_grid.errors import EmptyDataError
from distkeras_grid.local_sets.sampler import TileSampler, digest_of, expected_coverage
from distkeras_grid.local_sets.tile_index import TileIndex
from distkeras_grid.spec import LocalSpec


def whole_pool(classes=3, images=8, seed=0, most=40):
    """Images of every class with 5 tiles or more, in runs whose order mixes the classes."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    tiles = rng.integers(5, most, len(labels))
    # Each image is in two runs, as after an update.
    halves = np.concatenate([tiles - tiles // 2, tiles // 2])
    runs = rng.permutation(len(halves))
    which = runs % len(labels)
    return TileIndex.of(halves[runs], which, labels[which], classes)


def drawing_of(pool, *, seed=0, workers=3, held_out=2, **recipe):
    """Hold out some images of each class, unless tests come from others of the same."""
    spec = LocalSpec(**{"local_train": 20, "local_test": 9, **recipe})
    out = np.zeros(len(pool.starts), bool)
    if spec.test_images == "held_out":
        for label in range(pool.classes):
            images, _ = pool.images_of_class(label)
            out |= np.isin(pool.images, images[:held_out])
    return TileSampler(pool.select(~out), pool.select(out), spec, seed, workers)


def images_of(pool, places):
    return set(pool.images[pool.runs_of(places)].tolist())


# Each example draws dozens of sets.
few = settings(max_examples=15, deadline=None)
recipes = st.fixed_dictionaries(
    {
        "local_train": st.integers(1, 60),
        "local_test": st.integers(1, 25),
    }
) | st.fixed_dictionaries(
    {
        "local_train": st.integers(1, 30),
        "local_test": st.integers(1, 12),
        "test_images": st.sampled_from(["held_out", "others"]),
    }
)


@few
@given(recipes, st.integers(0, 50), st.integers(1, 4))
def test_B1_no_image_is_on_both_sides_of_any_local_sets(recipe, seed, workers):
    pool = whole_pool()
    drawing = drawing_of(pool, seed=seed, workers=workers, **recipe)
    sets = list(itertools.product(range(3), range(workers)))
    train = [images_of(pool, drawing.train(*each)) for each in sets]
    test = [images_of(pool, drawing.test(*each)) for each in sets]
    for mine, others in zip(train, test, strict=True):
        assert not mine & others
    if drawing.spec.test_images == "held_out":
        assert not set().union(*train) & set().union(*test)


def test_B1_with_images_of_others_an_image_may_be_tested_that_another_worker_trains():
    pool = whole_pool()
    drawing = drawing_of(pool, test_images="others")
    train, test = images_of(pool, drawing.train(0, 0)), images_of(pool, drawing.test(0, 1))
    assert train & test


@few
@given(recipes, st.integers(0, 50), st.integers(0, 4), st.integers(0, 2))
def test_B2_classes_differ_by_one_tile_at_most_and_no_tile_comes_twice(
    recipe, seed, iteration, worker
):
    drawing = drawing_of(whole_pool(), seed=seed, **recipe)
    spec = drawing.spec
    pools = (drawing.training, drawing.held_out)
    if spec.test_images == "others":
        pools = (drawing.training, drawing.training)
    sets = (drawing.train(iteration, worker), drawing.test(iteration, worker))
    for pool, places, size in zip(pools, sets, (spec.local_train, spec.local_test), strict=True):
        assert places.dtype == np.int64
        assert len(places) == len(set(places.tolist())) == size
        if size:
            amounts = np.bincount(pool.labels[pool.runs_of(places)], minlength=3)
            assert amounts.max() - amounts.min() <= 1


@few
@given(recipes)
def test_B3_the_same_seed_iteration_and_worker_give_the_same_set(recipe):
    ahead = drawing_of(whole_pool(), **recipe)
    late = drawing_of(whole_pool(), **recipe)
    sets = list(itertools.product(range(4), range(3)))
    forwards = {each: (ahead.train(*each), ahead.test(*each)) for each in sets}
    # A worker that begins again, and a driver that looks at one set, ask in another order.
    for each in reversed(sets):
        for mine, other in zip(forwards[each], (late.train(*each), late.test(*each)), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_B3_sets_of_another_seed_iteration_or_worker_differ():
    drawing = drawing_of(whole_pool())
    other = drawing_of(whole_pool(), seed=1)
    sets = [drawing.train(0, 0), drawing.train(0, 1), drawing.train(1, 0), other.train(0, 0)]
    assert len({digest_of(places) for places in sets}) == 4
    assert set(drawing.test(0, 0)) != set(drawing.test(0, 1))


def test_B3_sets_do_not_depend_on_how_many_workers_there_are():
    few, many = (drawing_of(whole_pool(), workers=n) for n in (2, 50))
    np.testing.assert_array_equal(few.train(3, 1), many.train(3, 1))


def test_B3_the_sets_are_those_of_every_machine():
    """Their digests, so that a release that draws otherwise is noticed."""
    pool = TileIndex.of([100] * 6, range(6), [0, 0, 1, 1, 2, 2], 3)
    digests = hashlib.sha256()
    for recipe in ({}, {"test_images": "others"}):
        drawing = drawing_of(pool, held_out=1, seed=2021, **recipe)
        digests.update(digest_of(drawing.train(17, 2)).encode())
        digests.update(digest_of(drawing.test(17, 2)).encode())
    assert digests.hexdigest()[:16] == "b01ddf10984c6dbf"


def coverage_deviation(tiles: int, drawn: int, sets: int) -> float:
    """Return the standard deviation of the share of `tiles` that independent sets reach."""
    missed = (1 - drawn / tiles) ** sets
    left = tiles - drawn
    both = (left * (left - 1) / (tiles * (tiles - 1))) ** sets
    variance = missed * (1 - missed) / tiles + (1 - 1 / tiles) * (both - missed**2)
    return float(np.sqrt(max(variance, 0.0)))


def test_B5_sets_reach_what_the_formula_says():
    classes, images, each = 3, 10, 40
    pool = TileIndex.of([each] * classes * images, range(30), np.arange(30) % classes, classes)
    found = []
    for seed in range(12):
        spec = LocalSpec(local_train=60)
        drawing = TileSampler(pool, pool.select(pool.tiles < 0), spec, seed, 5)
        found.append(drawing.coverage(itertools.product(range(8), range(5))))
    expected = expected_coverage(pool, 60, 40)
    # Of a mean of 12.
    deviation = coverage_deviation(400, 20, 40) / np.sqrt(3 * 12)
    assert abs(np.mean(found) - expected) < 4 * deviation
    assert deviation < 0.01


@pytest.fixture(scope="module")
def turned():
    """A catalogue of the turned tiles of 12 images, and the image and angle of each tile."""
    spec = TileSpec(16, overlap=0.5, angles=range(0, 360, 30), include_original=True)
    tiles, images, angles = [], [], []
    for image in range(12):
        found = list(frames_of(spec, 50 + image, 40, NO_ZONES))
        counts = [len(x) for _, (x, _) in found]
        tiles.append(sum(counts))
        images += [image] * sum(counts)
        angles += np.repeat([frame.angle for frame, _ in found], counts).tolist()
    pool = TileIndex.of(tiles, range(12), np.arange(12) % 2, 2)
    return pool, np.array(images), np.array(angles)


@pytest.mark.parametrize("test_images", ["held_out", "others"])
def test_B6_all_angles_of_an_image_stay_on_one_side(turned, test_images):
    """Images are turned after the split: no tile is tested whose turned twin is trained."""
    pool, images, angles = turned
    drawing = drawing_of(pool, test_images=test_images, local_train=120, local_test=60)
    for iteration in range(20):
        train, test = drawing.train(iteration, 0), drawing.test(iteration, 0)
        # A place of the catalogue is the tile of that number, image by image, angle by angle.
        np.testing.assert_array_equal(images[train], pool.images[pool.runs_of(train)])
        assert not set(images[train]) & set(images[test])
        for side in (train, test):
            turns = [len(set(angles[side][images[side] == each])) for each in set(images[side])]
            assert max(turns) > 1


# -- what cannot be drawn -----------------------------------------------------------------------


def test_a_class_without_enough_tiles_is_refused():
    pool = TileIndex.of([10, 10, 4], [0, 1, 2], [0, 0, 1], 2)
    nothing = pool.select(pool.tiles < 0)
    with pytest.raises(EmptyDataError, match="class 1"):
        TileSampler(pool, nothing, LocalSpec(local_train=10), 0, 1)
    with pytest.raises(EmptyDataError, match="local_test"):
        TileSampler(pool, nothing, LocalSpec(local_train=8, local_test=2), 0, 1)
    TileSampler(pool, nothing, LocalSpec(local_train=8), 0, 1)


def test_one_image_of_a_class_cannot_be_on_two_sides():
    pool = TileIndex.of([10, 10, 40], [0, 1, 2], [0, 0, 1], 2)
    with pytest.raises(EmptyDataError, match="class 1"):
        drawing_of(pool, test_images="others", local_train=4, local_test=2)
    without_tests = drawing_of(pool, test_images="others", local_train=4, local_test=0)
    assert (len(without_tests.train(0, 0)), len(without_tests.test(0, 0))) == (4, 0)


def test_without_tests_no_image_is_kept_from_the_training():
    pool = TileIndex.of([30] * 4, range(4), np.arange(4) % 2, 2)
    drawing = drawing_of(pool, test_images="others", local_train=len(pool), local_test=0)
    assert set(drawing.train(0, 0).tolist()) == set(range(len(pool)))

import numpy as np
import pytest

from distkeras_grid.errors import DataError
from distkeras_grid.local_sets.tile_index import TileIndex


def test_a_part_of_a_pool_keeps_the_numbers_of_its_tiles():
    pool = TileIndex.of([3, 2, 4], [7, 8, 7], [0, 1, 0], 2)
    part = pool.select(np.array([False, True, True]))
    assert (len(part), part.end, part.class_sizes.tolist()) == (6, 9, [4, 2])
    assert part.of_class(0).tolist() == [5, 6, 7, 8]
    assert part.runs_of(np.array([8, 3])).tolist() == [1, 0]
    with pytest.raises(IndexError):
        part.runs_of(np.array([2]))
    with pytest.raises(IndexError):
        pool.runs_of(np.array([9]))
    with pytest.raises(IndexError):
        pool.runs_of(np.array([-1]))


def test_images_of_a_class_have_the_tiles_of_all_their_runs():
    pool = TileIndex.of([3, 2, 4], [7, 8, 7], [0, 0, 0], 2)
    images, tiles = pool.images_of_class(0)
    assert (images.tolist(), tiles.tolist()) == ([7, 8], [7, 2])
    assert [part.tolist() for part in pool.images_of_class(1)] == [[], []]


@pytest.mark.parametrize(
    ("tiles", "labels", "classes"), [([0, 1], [0, 0], 1), ([1, 1], [0, 1], 1), ([1, 1], [0], 1)]
)
def test_what_is_no_pool_is_refused(tiles, labels, classes):
    with pytest.raises(DataError):
        TileIndex.of(tiles, range(len(tiles)), labels, classes)


def test_runs_that_overlap_are_refused():
    numbers = np.array([0, 1])
    with pytest.raises(DataError):
        TileIndex(numbers, np.array([2, 2]), numbers, numbers, 2)


def test_an_empty_pool_has_nothing():
    pool = TileIndex.of([3], [0], [0], 1)
    nothing = pool.select(pool.tiles < 0)
    assert (len(nothing), nothing.end, nothing.class_sizes.tolist()) == (0, 0, [0])

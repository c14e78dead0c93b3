import numpy as np
import pytest

from distkeras_grid.errors import DataError
from distkeras_grid.rows import ALIGNMENT, RowBlock, aligned_empty


def test_block_counts_steps_and_samples():
    block = RowBlock((np.zeros((3, 4, 2)),), (np.zeros((3, 4)),))
    assert (block.steps, block.samples, len(block.arrays)) == (3, 12, 2)
    assert len(RowBlock(block.x, block.y, np.ones((3, 4), np.float32)).arrays) == 3


@pytest.mark.parametrize(
    ("x", "y"),
    [((3, 4), (3, 5)), ((3,), (3,)), ((0, 4), (0, 4)), ((3, 0), (3, 0))],
    ids=["unequal", "no batch axis", "no steps", "no samples"],
)
def test_block_refuses_arrays_that_disagree(x, y):
    with pytest.raises(DataError, match="same \\(steps, batch\\)"):
        RowBlock((np.zeros(x),), (np.zeros(y),))


@pytest.mark.parametrize("shape", [7, (2, 3), ()])
def test_aligned_memory(shape):
    array = aligned_empty(shape, np.float64)
    assert array.ctypes.data % ALIGNMENT == 0
    assert array.shape == np.empty(shape).shape
    assert array.flags.writeable

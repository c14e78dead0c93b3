import numpy as np
import pytest

from distkeras_grid.errors import DataError, PathNotFoundError
from distkeras_grid.simulation.saved_state import read, write


def test_a_tree_comes_back(tmp_path):
    tree = {"vector": np.full(3, 2.0), "random": np.random.default_rng(0).bit_generator.state}
    write(tmp_path / "state", tree)
    found = read(tmp_path / "state")
    assert found["random"] == tree["random"]
    np.testing.assert_array_equal(found["vector"], tree["vector"])


def test_no_file_is_said_to_be_none(tmp_path):
    with pytest.raises(PathNotFoundError):
        read(tmp_path / "state")


@pytest.mark.parametrize("content", [b"", b"garbage", b"DKGTREE1 broken"])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(DataError, match=r"[^.]\.$"):
        read(tmp_path / "state")

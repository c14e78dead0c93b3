import numpy as np
import pytest

from distkeras_grid.errors import DataError, PathNotFoundError
from distkeras_grid.simulation.saved_state import read, write


def test_a_tree_comes_back_with_its_arrays(tmp_path):
    shared = np.full(3, 2.0)
    tree = {"vector": shared, "seats": [{"rows": None, "same": shared}, {"rows": 4}]}
    write(tmp_path / "state", tree)
    with np.load(tmp_path / "state") as content:
        assert len(content.files) == 1 + 1, "the tree, and each array once"
    found = read(tmp_path / "state")
    assert found["seats"][1] == {"rows": 4}
    assert found["seats"][0]["rows"] is None
    np.testing.assert_array_equal(found["seats"][0]["same"], shared)


def test_big_integers_and_types_survive(tmp_path):
    state = np.random.default_rng(0).bit_generator.state
    write(tmp_path / "state", {"random": state, "half": np.ones(2, np.float16)})
    found = read(tmp_path / "state")
    assert found["random"] == state
    assert found["half"].dtype == np.float16


def test_no_file_is_said_to_be_none(tmp_path):
    with pytest.raises(PathNotFoundError, match="no saved simulation at"):
        read(tmp_path / "state")


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 broken"])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(DataError, match="is no saved simulation"):
        read(tmp_path / "state")


def test_arrays_of_others_are_refused(tmp_path):
    np.savez(tmp_path / "state.npz", x=np.ones(3))
    with pytest.raises(DataError, match="is no saved simulation"):
        read(tmp_path / "state.npz")
    np.save(tmp_path / "state.npy", np.ones(3))
    with pytest.raises(DataError, match="is no saved simulation"):
        read(tmp_path / "state.npy")

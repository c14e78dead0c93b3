from dataclasses import dataclass

import numpy as np
import pytest

from distkeras_grid.errors import DataError, PathNotFoundError
from distkeras_grid.simulation.saved_state import put_together, read, take_apart, write


@dataclass(frozen=True)
class Settings:
    rate: float


@dataclass(slots=True)
class Seat:
    rows: int | None
    vector: np.ndarray


class Server:
    def __init__(self, value):
        self.settings = Settings(value)
        self.version = int(value)
        self.vector = np.full(3, value)
        self.same = [self.vector, np.zeros(2)]
        self.seats = [Seat(None, np.full(2, value)), Seat(4, np.zeros(0))]
        self.events = [{"kind": "window", "metrics": {"loss": value}}] * int(value)


def test_an_object_gets_the_state_of_another_one_through_a_file(tmp_path):
    one, other = Server(2.0), Server(1.0)
    write(tmp_path / "state", {"server": take_apart(one), "nothing": None})
    put_together(other, read(tmp_path / "state")["server"])
    assert other.version == 2
    assert (other.vector == 2.0).all()
    assert other.seats[0].rows is None
    assert (other.seats[0].vector == 2.0).all()
    assert other.events == one.events
    assert other.settings == Settings(1.0), "who builds the object has the settings"


def test_an_array_of_two_names_stays_one(tmp_path):
    one, other = Server(2.0), Server(1.0)
    write(tmp_path / "state", take_apart(one))
    with np.load(tmp_path / "state") as content:
        assert len(content.files) == 1 + 4, "the tree, and each array once"
    put_together(other, read(tmp_path / "state"))
    assert other.same[0] is other.vector


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

import pytest

from distkeras_grid import LocalSets
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.spec import LocalSpec


def test_the_recipe_is_what_was_asked_for():
    sets = LocalSets("tiles", iterations=2, local_train=6, local_test=3, test_images="others")
    assert sets.spec == LocalSpec(local_train=6, local_test=3, test_images="others")


def test_no_password_of_a_mirror_is_shown():
    sets = LocalSets("tiles", iterations=1, local_train=6, mirrors=["http://ada:secret@host/x"])
    assert "secret" not in repr(sets)


@pytest.mark.parametrize(
    "wrong",
    [
        {"iterations": 0},
        {"local_train": 0},
        {"local_test": -1},
        {"test_images": "all"},
        {"mirrors": "http://a"},
        {"mirrors": [1]},
        {"test_split": "train"},
        {"split": None},
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_read(wrong):
    with pytest.raises(ConfigurationError):
        LocalSets("tiles", **{"iterations": 1, "local_train": 6, "local_test": 3, **wrong})

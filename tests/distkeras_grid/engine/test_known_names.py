from __future__ import annotations

import pytest

from distkeras_grid.engine import known_names
from distkeras_grid.engine.known_names import KERAS, LOSSES, METRICS, OPTIMIZERS, refuse_unknown
from distkeras_grid.errors import ConfigurationError


@pytest.mark.parametrize(
    "names",
    [
        {"loss": "mse"},
        {"loss": ["mse", None, "hinge"]},
        {"loss": {"a": "mse"}, "metrics": [["accuracy"], {"b": "mae"}]},
        {"optimizer": "Adam"},
        {"optimizer": {"class_name": "of_mine"}},
        {"loss": "mine>charbonnier"},
        {"loss": print},
        {},
    ],
)
def test_what_keras_may_know_passes(names):
    refuse_unknown(**names)


@pytest.mark.parametrize(
    "names",
    [
        {"loss": "msee"},
        {"loss": "Adam"},
        {"metrics": ["acuracy"]},
        {"metrics": [{"a": ["mae", "nope"]}]},
        {"optimizer": "adamm"},
    ],
)
def test_a_name_that_keras_does_not_know_is_refused(names):
    with pytest.raises(ConfigurationError):
        refuse_unknown(**names)


def test_of_another_keras_nothing_is_said(monkeypatch):
    monkeypatch.setattr(known_names, "KERAS", "2.0.0")
    refuse_unknown(loss="of_the_future")


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("module", "table"), [("losses", LOSSES), ("metrics", METRICS), ("optimizers", OPTIMIZERS)]
)
def test_the_table_is_that_of_keras(module, table):
    import keras

    if keras.__version__ != KERAS:
        pytest.skip(f"the table is of Keras {KERAS}, this is {keras.__version__}")
    public = getattr(keras, module)
    by_keras = getattr(keras.src, module).ALL_OBJECTS_DICT
    special = {"accuracy", "acc", "crossentropy", "ce"} if module == "metrics" else set()
    assert table == set(by_keras) | special

    def found(name):
        try:
            return public.get(name) is not None
        except (KeyError, TypeError, ValueError):
            return False  # Many functions and classes take arguments.

    folded = (lambda name: name.lower()) if module == "optimizers" else str
    assert {name for name in dir(public) if found(name) and folded(name) not in table} == set()

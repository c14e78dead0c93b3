"""Custom objects stay with a model as long as it lives."""

from __future__ import annotations

import gc

import pytest

from distkeras_grid.engine.custom_objects import (
    objects_of,
    own_names,
    register_objects,
    serializable_objects,
)
from distkeras_grid.errors import ConfigurationError


class Model:
    """Stands for a Keras model: it can be referred to weakly, and is equal to itself only."""


def test_objects_are_those_of_one_model():
    first, second = Model(), Model()
    register_objects(first, {"Own": Model})
    register_objects(second, None)
    assert objects_of(first) == {"Own": Model}
    assert objects_of(second) == {}
    objects_of(first).clear()
    assert objects_of(first) == {"Own": Model}


def test_a_model_that_is_gone_leaves_nothing():
    from distkeras_grid.engine import custom_objects

    # Models of other tests may be garbage.
    gc.collect()
    model = Model()
    before = len(custom_objects._known)
    register_objects(model, {"Own": Model})
    del model
    gc.collect()
    assert len(custom_objects._known) == before


@pytest.mark.parametrize(
    ("described", "names"),
    [
        ({"module": "nets", "class_name": "Net", "registered_name": "Net"}, ["Net"]),
        # As Keras describes a class of `__main__`.
        ({"module": None, "class_name": "Net", "registered_name": "mine>Net"}, ["mine>Net"]),
        ({"module": "nets", "class_name": "Net"}, ["Net"]),
        ({"module": "builtins", "class_name": "function", "config": "loss"}, ["loss"]),
        ({"class_name": "__lambda__", "config": {"value": ""}}, ["__lambda__"]),
        ({"module": "keras.layers", "class_name": "Dense", "registered_name": None}, []),
        ({"module": "keras_hub.src.a", "class_name": "B", "registered_name": "keras_hub>B"}, []),
        ({"module": "kerasy", "class_name": "B", "registered_name": "B"}, ["B"]),
        ({"class_name": "__tensor__", "config": {"value": [1.0]}}, []),
        (["relu", 1, None, {"config": {"axis": 1}}], []),
    ],
)
def test_names_that_only_the_user_can_explain(described, names):
    assert list(own_names({"config": {"layers": [described]}})) == names


def archive_of(layer):
    import keras

    from distkeras_grid.engine.keras_model import model_to_bytes

    return model_to_bytes(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), layer]))


@pytest.mark.tensorflow
def test_what_is_registered_travels_with_what_is_given():
    import keras

    class Own(keras.layers.Layer):
        def call(self, x):
            return x

    archive = archive_of(Own())
    assert serializable_objects(archive, {"Own": Own}) == {"Own": Own}
    with pytest.raises(ConfigurationError):
        serializable_objects(archive, {})
    with keras.saving.custom_object_scope({"Own": Own}):
        assert serializable_objects(archive, {"other": 1}) == {"Own": Own, "other": 1}
    assert serializable_objects(archive_of(keras.layers.ReLU()), {}) == {}


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def test_code_in_a_model_goes_through_where_it_is_allowed_and_nowhere_else():
    import keras
    from keras.src.backend.common import global_state

    from distkeras_grid.engine.keras_model import model_from_bytes

    archive = archive_of(keras.layers.Lambda(lambda x: x))
    with pytest.raises(ConfigurationError):
        serializable_objects(archive, {})
    try:
        keras.config.enable_unsafe_deserialization()
        objects = serializable_objects(archive, {})
    finally:
        global_state.set_global_attribute("safe_mode_saving", None)
    # As on an executor, where it was not called.
    assert model_from_bytes(archive, objects).count_params() == 3
    with pytest.raises(ConfigurationError):
        model_from_bytes(archive)

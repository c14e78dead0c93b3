"""What another process needs to load a model of the user's own classes."""

import pytest

from distkeras_grid.engine.custom_objects import own_names, serializable_objects
from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes
from distkeras_grid.errors import ConfigurationError
from tests.engines import keras


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
    return model_to_bytes(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), layer]))


@pytest.mark.tensorflow
def test_what_is_registered_travels_with_what_is_given():
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
    from keras.src.backend.common import global_state

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

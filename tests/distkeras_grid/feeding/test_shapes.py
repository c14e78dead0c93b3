"""Which column goes where, and whether it fits, from what the model says of itself."""

import re
from types import SimpleNamespace

import pytest

from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.shapes import (
    Port,
    check_fit,
    check_one_output,
    inputs_of,
    match,
    outputs_of,
)

IMAGE, AGE = Field("image", (2, 2, 1)), Field("years", (1,), "float32")
PORTS = (Port("pixels", (2, 2, 1)), Port("age", (1,)))


class Model:
    """As Keras has it: a model of a class of the user's does not even have the attributes."""

    name = "m"

    def __init__(self, inputs=(), outputs=(), keys=None):
        for end, shapes in (("inputs", inputs), ("outputs", outputs)):
            if shapes:
                tensors = [
                    SimpleNamespace(name=f"{end}_{n}", shape=shape, dtype="float32")
                    for n, shape in enumerate(shapes)
                ]
                setattr(self, end, tensors)
                structure = dict(zip(keys, tensors, strict=True)) if keys else tensors
                setattr(self, end.removesuffix("s"), structure)


@pytest.mark.parametrize("shape", [(None, 2, 2, 1), (8, 2, 2, 1), (None, None, None, 1)])
def test_a_model_that_takes_the_columns_shape_fits(shape):
    check_fit(Model([shape], [(None, 3)]), [IMAGE])


@pytest.mark.parametrize("shape", [(None, 2, 2), (None, 2, 2, 3), (None, 4)])
def test_a_model_that_takes_another_shape_does_not_fit(shape):
    wanted = re.escape(str(shape[1:]))
    with pytest.raises(SchemaError, match=rf"'m' takes .* {wanted}\..* 'image' .* \(2, 2, 1\)"):
        check_fit(Model([shape]), [IMAGE])


def test_of_several_inputs_the_one_that_does_not_fit_is_named():
    model = Model([(None, 2, 2, 1), (None, 3)])
    message = r"\(3,\) for input 'inputs_1'.* 'years' .* \(1,\)"
    with pytest.raises(SchemaError, match=message):
        check_fit(model, [IMAGE, AGE])
    check_fit(Model([(None, 2, 2, 1), (None, 1)]), [IMAGE, AGE])


def test_a_model_of_unknown_shapes_is_not_checked():
    check_fit(Model(), [IMAGE])
    assert inputs_of(Model()) == outputs_of(Model()) == ()


def test_ports_have_the_names_that_keras_gives():
    model = Model([(None, 2), (None, 1)], [(None, 3), (None, 1)])
    assert [port.name for port in inputs_of(model)] == ["inputs_0", "inputs_1"]
    model.output_names = ["kind", "size"]
    assert [port.name for port in outputs_of(model)] == ["kind", "size"]
    keyed = Model([(None, 2), (None, 1)], [(None, 3), (None, 1)], keys=["a", "b"])
    keyed.output_names = ["kind", "size"]
    assert [port.name for port in (*inputs_of(keyed), *outputs_of(keyed))] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("shape", "size"), [((None, 10), 10), ((None, 4, 3), 3), ((None,), None), ((None, None), None)]
)
def test_the_size_of_an_output_is_its_last_axis(shape, size):
    (port,) = outputs_of(Model(outputs=[shape]))
    assert port.size == size


@pytest.mark.parametrize("given", [["a", "b"], ("a", "b"), {"age": "b", "pixels": "a"}])
def test_columns_come_in_the_models_order(given):
    assert match(given, PORTS, "features_col") == ("a", "b")


@pytest.mark.parametrize(
    ("given", "ports"),
    [("a", PORTS[:1]), (["a"], PORTS[:1]), ({"pixels": "a"}, PORTS[:1]), ("a", ()), (["a"], ())],
)
def test_one_column_suits_a_model_of_one_or_that_declares_nothing(given, ports):
    assert match(given, ports, "features_col") == ("a",)


@pytest.mark.parametrize(
    ("given", "ports", "message"),
    [
        ("a", PORTS, "features_col has nothing for 'age'; the model has 'pixels', 'age'"),
        (["a"], PORTS, "features_col has nothing for 'age'"),
        (["a", "b", "c"], PORTS, "3 items for 2"),
        ({"pixels": "a"}, PORTS, "nothing for 'age'"),
        ({"pixels": "a", "age": "b", "size": "c"}, PORTS, "no place for 'size'"),
        (["a", "b"], PORTS[:1], "2 items for 1"),
        (["a", "b"], (), "2 items for 1; the model has one, which has no name"),
        ({"a": "b"}, (), "no place for 'a'"),
        ({"age": "b"}, PORTS[1:] * 2, "cannot be given by names: .*'age' occurs twice"),
    ],
)
def test_what_does_not_match_is_named(given, ports, message):
    with pytest.raises(ConfigurationError, match=message):
        match(given, ports, "features_col")


def test_class_weights_are_for_one_output():
    check_one_output({0: 2.0}, PORTS[:1])
    check_one_output({0: 2.0}, ())
    check_one_output(None, PORTS)
    with pytest.raises(ConfigurationError, match="'pixels', 'age'"):
        check_one_output({0: 2.0}, PORTS)

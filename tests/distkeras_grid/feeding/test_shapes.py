"""Whether a column fits a model, from what the model says of itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.shapes import check_fit, output_size

IMAGE = Field("image", (2, 2, 1))


class Model:
    """As Keras has it: a model of a class of the user's does not even have the attributes."""

    name = "m"

    def __init__(self, inputs=(), outputs=()):
        for end, shapes in (("inputs", inputs), ("outputs", outputs)):
            if shapes:
                setattr(self, end, [SimpleNamespace(shape=shape) for shape in shapes])


@pytest.mark.parametrize("shape", [(None, 2, 2, 1), (8, 2, 2, 1), (None, None, None, 1)])
def test_a_model_that_takes_the_columns_shape_fits(shape):
    check_fit(Model([shape], [(None, 3)]), IMAGE)


@pytest.mark.parametrize("shape", [(None, 2, 2), (None, 2, 2, 3), (None, 4)])
def test_a_model_that_takes_another_shape_does_not_fit(shape):
    wanted = str(shape[1:]).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(
        SchemaError, match=rf"'image' holds .* \(2, 2, 1\), but model 'm' takes {wanted}"
    ):
        check_fit(Model([shape]), IMAGE)


def test_a_model_of_unknown_shapes_is_not_checked():
    check_fit(Model(), IMAGE)
    assert output_size(Model()) is None


@pytest.mark.parametrize("end", ["inputs", "outputs"])
def test_models_with_several_inputs_or_outputs_are_refused(end):
    with pytest.raises(ConfigurationError, match=f"'m' has 2 {end}"):
        check_fit(Model(**{end: [(None, 2, 2, 1)] * 2}), IMAGE)


@pytest.mark.parametrize(
    ("shape", "size"), [((None, 10), 10), ((None, 4, 3), 3), ((None,), None), ((None, None), None)]
)
def test_the_size_of_the_output_is_its_last_axis(shape, size):
    assert output_size(Model(outputs=[shape])) == size

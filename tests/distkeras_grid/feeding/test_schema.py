import json
import pickle

import pytest

from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import METADATA_KEY, Field


def test_is_hashable_and_picklable():
    field = Field("image", [2, 2, 1], classes=["a", "b"])
    assert field.shape == (2, 2, 1)
    assert {field: 1}[pickle.loads(pickle.dumps(field))] == 1  # noqa: S301


def test_metadata_is_the_documented_json():
    field = Field("image", (256, 256, 3), scale=1 / 255, classes=("a", "b"))
    assert field.to_metadata() == {
        METADATA_KEY: {
            "version": 1,
            "shape": [256, 256, 3],
            "dtype": "uint8",
            "encoding": "raw",
            "scale": 0.00392156862745098,
            "offset": 0.0,
            "classes": ["a", "b"],
        }
    }


@pytest.mark.parametrize(
    "field",
    [
        Field("x", ()),
        Field("x", (784,), dtype="float32", offset=-0.5, scale=2),
        Field("image", (8, 8, 1), dtype="uint16", encoding="png", scale=1 / 65535),
        Field("image", (8, 8, 3), encoding="jpeg", classes=("Dolomit", "Kalkstein-ä")),
    ],
)
def test_round_trip_through_json_text(field):
    metadata = json.loads(json.dumps({**field.to_metadata(), "ml_attr": {"type": "numeric"}}))
    assert Field.from_metadata(field.name, metadata) == field


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": ""}, "name of a column"),
        ({"shape": (28, 0, 1)}, r"positive integers.*\(28, 0, 1\)"),
        ({"shape": (28, True)}, "positive integers"),
        ({"shape": 784}, "784"),
        ({"dtype": "unit8"}, "Received: 'unit8'"),
        ({"dtype": ">u2"}, "Received: '>u2'"),
        ({"encoding": "gif"}, "raw, jpeg, png, difference, tile. Received: 'gif'"),
        ({"encoding": "jpeg", "shape": (8, 8)}, "height, width, 1 or 3"),
        ({"encoding": "jpeg", "shape": (8, 8, 4)}, "height, width, 1 or 3"),
        ({"encoding": "jpeg", "dtype": "uint16"}, "jpeg, which holds uint8"),
        ({"encoding": "png", "dtype": "float32"}, "png, which holds uint8 or uint16"),
        ({"scale": 0.0}, "scale=0.0"),
        ({"scale": float("nan")}, "scale=nan"),
        ({"offset": float("inf")}, "offset=inf"),
        ({"classes": ("a", "b", "a")}, "differ"),
        ({"classes": "abc"}, "tuple of names"),
    ],
)
def test_refuses_what_cannot_be_meant(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        Field(**{"name": "image", "shape": (8, 8, 1), **arguments})


VALID = Field("image", (2, 2, 1)).to_metadata()[METADATA_KEY]


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({}, r'Field\("image"'),
        ({METADATA_KEY: "text"}, r"Field\("),
        ({METADATA_KEY: {"version": 2}}, "version 2"),
        ({METADATA_KEY: {"version": 1, "shape": [2, 2, 1]}}, "damaged"),
        ({METADATA_KEY: VALID | {"shape": 4}}, "damaged"),
        ({METADATA_KEY: VALID | {"dtype": "x"}}, "damaged"),
    ],
)
def test_damaged_metadata_is_one_schema_error(metadata, says):
    with pytest.raises(SchemaError, match=says):
        Field.from_metadata("image", metadata)

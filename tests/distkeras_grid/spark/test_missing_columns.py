"""What is said of a column that is not there; needs a schema, and no JVM."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from distkeras_grid.errors import SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.columns import resolve_columns

TILES = StructType(
    [
        StructField("image", BinaryType(), metadata=Field("image", (8, 8, 1)).to_metadata()),
        StructField("label", LongType()),
    ]
)


def frame(schema):
    return SimpleNamespace(columns=schema.names, schema=schema)


def test_the_default_on_tiles_points_to_their_image():
    with pytest.raises(SchemaError, match="features_col='image'"):
        resolve_columns(frame(TILES), "features", "label")


def test_a_misspelt_column_points_to_the_nearest():
    with pytest.raises(SchemaError, match="Did you mean 'label'"):
        resolve_columns(frame(TILES), "image", "lable")

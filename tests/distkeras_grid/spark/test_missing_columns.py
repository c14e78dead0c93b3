"""What is said of a column that is not there; needs a schema, and no JVM."""

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


@pytest.mark.parametrize(
    ("columns", "advice"),
    [(("features", "label"), "features_col='image'"), (("image", "lable"), "Did you mean 'label'")],
)
def test_a_column_that_is_not_there_points_to_the_nearest_or_to_the_image_of_tiles(columns, advice):
    frame = SimpleNamespace(columns=TILES.names, schema=TILES)
    with pytest.raises(SchemaError, match=advice):
        resolve_columns(frame, *columns)

"""Groups of images, such as specimens, as a column of the rows of their tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCE_COLUMN, GROUP_COLUMN = "source", "group"


def with_groups(frame: DataFrame, groups: Mapping[str, str]) -> DataFrame:
    """Return rows with the column `group`."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    if not groups or SOURCE_COLUMN not in frame.columns or GROUP_COLUMN in frame.columns:
        return frame
    table = pa.table({"_source": list(groups.keys()), GROUP_COLUMN: list(groups.values())})
    known = F.broadcast(frame.sparkSession.createDataFrame(table))
    return frame.join(known, F.col(SOURCE_COLUMN) == F.col("_source"), "left").drop("_source")

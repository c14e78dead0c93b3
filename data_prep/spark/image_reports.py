"""What tasks report of images to the driver, beside their rows."""

from __future__ import annotations

from typing import TypeAlias

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

# By digest of the file: the number of tiles that the conditions dropped, or why it has no tiles.
Reports: TypeAlias = dict[str, int | str]


class _Union(AccumulatorParam[Reports]):
    """Reports by name: what a task reports twice, because it ran twice, counts once."""

    def zero(self, value: Reports) -> Reports:  # noqa: ARG002  Spark's signature
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:
        return {**value1, **value2}


def image_reports(spark: SparkSession) -> Accumulator[Reports]:
    """Return an accumulator to which tasks add what they report of each image."""
    return spark.sparkContext.accumulator({}, _Union())

"""How tasks report the tiles that they dropped to the driver, beside their rows."""

from __future__ import annotations

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession


class _Union(AccumulatorParam[dict[str, int]]):
    """Numbers by name: what a task reports twice, because it ran twice, counts once."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:  # noqa: ARG002  Spark's signature
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:
        return {**value1, **value2}


def count_dropped(spark: SparkSession) -> Accumulator[dict[str, int]]:
    """Return an accumulator: tasks add the number of dropped tiles of each image that they cut."""
    return spark.sparkContext.accumulator({}, _Union())

"""How tasks tell the driver, beside their rows, what they have dropped."""

from __future__ import annotations

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession


class _Union(AccumulatorParam[dict[str, int]]):
    """Numbers by name: what a task says twice, because it ran twice, counts once."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:  # noqa: ARG002  Spark's signature
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:
        return {**value1, **value2}


def count_dropped(spark: SparkSession) -> Accumulator[dict[str, int]]:
    """Return what tasks tell of each image that they have cut: how many tiles were dropped."""
    return spark.sparkContext.accumulator({}, _Union())

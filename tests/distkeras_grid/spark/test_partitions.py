"""Keys that Spark's own hash sends where they belong."""

from __future__ import annotations

import pytest

from distkeras_grid.spark.partitions import partition_key

LAST = 2**31 - 1


@pytest.mark.spark
def test_spark_hashes_a_key_to_its_partition(spark):
    numbers = [*range(2000), *(2**bits for bits in range(11, 31)), LAST]
    rows = [(number, partition_key(number)) for number in numbers]
    frame = spark.createDataFrame(rows, "number int, key int")
    assert frame.where("hash(key) != number").collect() == []


@pytest.mark.spark
@pytest.mark.parametrize("count", [1, 3, 40])
def test_spark_puts_each_key_in_its_partition_and_merges_none(spark, count):
    from pyspark.sql import functions as F

    # Adaptive execution coalesces partitions as small as these where it may.
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    rows = [(number, partition_key(number)) for number in range(count)] * 3
    frame = spark.createDataFrame(rows, "number int, key int").repartition(count, F.col("key"))
    found = frame.groupBy(F.spark_partition_id().alias("at"), "number").count().collect()
    assert sorted(map(tuple, found)) == [(number, number, 3) for number in range(count)]

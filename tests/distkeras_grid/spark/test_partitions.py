"""Keys that Spark's own hash sends where they belong."""

import pytest

from distkeras_grid.spark.partitions import partition_key

LAST = 2**31 - 1


@pytest.mark.spark
def test_spark_hashes_a_key_to_its_partition(spark):
    numbers = [*range(2000), *(2**bits for bits in range(11, 31)), LAST]
    rows = [(number, partition_key(number)) for number in numbers]
    frame = spark.createDataFrame(rows, "number int, key int")
    assert frame.where("hash(key) != number").collect() == []

"""Keys that Spark's own hash sends where they belong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.spark.partitions import partition_key

LAST = 2**31 - 1


def murmur3(key):
    """MurmurHash3_x86_32 of four bytes with the seed 42, step by step as published."""

    def rotated(value, bits):
        return (value << bits | value >> (32 - bits)) % 2**32

    block = rotated(key * 0xCC9E2D51 % 2**32, 15) * 0x1B873593 % 2**32
    mixed = (rotated(42 ^ block, 13) * 5 + 0xE6546B64) % 2**32 ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2**32
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 % 2**32
    return mixed ^ mixed >> 16


@given(st.integers(0, LAST))
def test_keys_are_signed_numbers_of_32_bits(number):
    assert -(2**31) <= partition_key(number) <= LAST


@given(st.integers(0, LAST))
def test_a_key_hashes_to_its_partition(number):
    assert murmur3(partition_key(number)) == number


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

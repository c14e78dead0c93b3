"""A job in a thread of its own."""

from __future__ import annotations

import time

import pytest

from distkeras_grid.errors import ClusterError
from distkeras_grid.spark.launch import Launch


def launched(spark, task):
    launch = Launch(spark.range(2, numPartitions=2), task, "id long", "test job")
    launch.start()
    return launch


def passes(batches):
    yield from batches


def fails(batches):
    for _ in batches:
        raise ValueError("the fourth row is blue")
    yield


def sleeps(batches):
    import time

    time.sleep(60)
    yield from batches


@pytest.mark.spark
def test_rows_come_back(spark):
    launch = launched(spark, passes)
    assert launch.wait(30)
    assert sorted(row.id for row in launch.result()) == [0, 1]


@pytest.mark.spark
def test_a_failing_task_is_told_by_its_own_words(spark):
    launch = launched(spark, fails)
    assert launch.wait(60)
    with pytest.raises(ClusterError, match="the fourth row is blue"):
        launch.result()


@pytest.mark.spark
def test_cancel_ends_the_job_at_once(spark):
    launch = launched(spark, sleeps)
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 30
    while not tracker.getActiveStageIds() and time.monotonic() < deadline:
        launch.wait(0.05)
    launch.cancel()
    assert launch.wait(10)
    with pytest.raises(ClusterError, match="cancel"):
        launch.result()

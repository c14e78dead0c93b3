from __future__ import annotations

import pytest

from distkeras_grid.spark.launch import Launch
from distkeras_grid.spark.locality import Localities, job_localities

pytestmark = [pytest.mark.spark]

LEVELS = {"PROCESS_LOCAL", "NODE_LOCAL", "NO_PREF", "RACK_LOCAL", "ANY"}


def attempts(batches):
    import pyarrow as pa
    from pyspark import TaskContext

    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"attempt": [TaskContext.get().taskAttemptId()]})


@pytest.mark.slow
def test_every_attempt_has_a_level_and_reading_tasks_are_counted(spark):
    dealt = spark.range(0, 1000, 1, 3).repartition(2)
    launch = Launch(dealt, attempts, "attempt long", "locality-test")
    launch.start()
    assert launch.wait(60)
    found = launch.localities()
    assert set(found.workers) == {row["attempt"] for row in launch.result()}
    assert set(found.workers.values()) <= LEVELS
    assert sum(found.reading.values()) == 3
    assert set(found.reading) <= LEVELS


def test_a_job_that_never_ran_has_none(spark):
    assert job_localities(spark.sparkContext, "nobody", "nobody's workers") == Localities()

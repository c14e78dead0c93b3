"""The session, and the slots it has."""

import sys

import pytest

from distkeras_grid.checkpoints import Driver
from distkeras_grid.spark.session import executor_slots, local_cores, task_slots, this_driver
from tests.cluster import spark_home
from tests.distkeras_grid.spark.programs import run_python


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[2]", 2), ("local[3,4]", 3), ("yarn", None)]
)
def test_local_cores(master, cores):
    assert local_cores(master) == cores


@pytest.mark.spark
def test_a_local_session_has_a_slot_a_thread_and_is_the_first_attempt_of_its_application(spark):
    assert task_slots(spark) == 2
    assert this_driver(spark) == Driver(spark.sparkContext.applicationId, attempt=1)


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, 1),
        ({"spark.executor.cores": "4"}, 4),
        ({"spark.executor.cores": "5", "spark.task.cpus": "2"}, 2),
        ({"spark.executor.cores": "1", "spark.task.cpus": "2"}, 1),
    ],
)
def test_an_executor_runs_a_task_for_each_of_its_shares_of_cores(settings, slots):
    assert executor_slots(settings.get) == slots


SUBMITTED = """
import json, os, sys
from distkeras_grid import build_session
session = build_session("mine", master="local[7]", settings={"spark.locality.wait": "2s"})
conf = session.sparkContext.getConf()
names = ("spark.master", "spark.app.name", "spark.locality.wait", "spark.driver.memory")
print("told", json.dumps([conf.get(name) for name in names] + [os.environ["PYSPARK_PYTHON"]]))
"""


@pytest.mark.full
@pytest.mark.spark
def test_under_spark_submit_the_submission_decides(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(SUBMITTED)
    flags = ("--master", "local[1,2]", "--name", "theirs", "--driver-memory", "600m")
    told = run_python(tmp_path, str(spark_home() / "bin" / "spark-submit"), *flags, str(script))
    assert told == ["local[1,2]", "theirs", "2s", "600m", sys.executable]

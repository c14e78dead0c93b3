"""The session and the check of executors' interpreters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv

import pytest

from distkeras_grid.errors import EnvironmentMismatchError
from distkeras_grid.spark import session
from distkeras_grid.spark.session import (
    check_executors,
    compare_interpreters,
    local_cores,
    package_versions,
    task_slots,
)
from tests.cluster import spark_home

DRIVER = {
    "executable": "/driver/python",
    "python": "3.11",
    "packages": {"keras": "3.15.1", "numpy": "2.4.6"},
}


def executor(**packages):
    found = {**DRIVER["packages"], **packages}
    return {"executable": "/node/python", "host": "node7", "python": "3.11", "packages": found}


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[2]", 2), ("local[3,4]", 3), ("yarn", None)]
)
def test_local_cores(master, cores):
    assert local_cores(master) == cores


def test_equal_interpreters_raise_nothing():
    assert compare_interpreters(DRIVER, executor()) == []


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        ({"keras": None}, "lacks keras"),
        ({"distkeras_grid": None}, "lacks distkeras_grid"),
        ({"numpy": "1.26.4"}, "numpy 1.26.4"),
    ],
)
def test_a_difference_names_both_interpreters(packages, words):
    (problem,) = compare_interpreters(DRIVER, executor(**packages))
    assert words in problem
    assert "/driver/python" in problem
    assert "/node/python" in problem


def test_another_python_is_told():
    (problem,) = compare_interpreters(DRIVER, {**executor(), "python": "3.12"})
    assert "3.12" in problem


def test_builds_of_one_package_count_under_one_name():
    assert package_versions(("tensorflow",))["tensorflow"] is not None
    assert package_versions(("no-such-package",)) == {"no-such-package": None}


@pytest.mark.spark
def test_this_session_passes_its_own_check(spark):
    assert task_slots(spark) == 2
    check_executors(spark)


@pytest.mark.spark
def test_a_package_that_executors_lack_is_told_before_work(spark, monkeypatch):
    versions = package_versions

    def pretend(names):
        return {**versions(names), "only-here": "1.0"}

    # The driver claims a package that no interpreter has; the executors answer for themselves.
    monkeypatch.setattr(session, "package_versions", pretend)
    with pytest.raises(EnvironmentMismatchError, match="lacks only-here") as caught:
        check_executors(spark, ("numpy", "only-here"))
    assert sys.executable in str(caught.value)


SUBMITTED = """
import json, os, sys
from distkeras_grid import build_session
session = build_session("mine", master="local[7]", settings={"spark.locality.wait": "2s"})
conf = session.sparkContext.getConf()
names = ("spark.master", "spark.app.name", "spark.locality.wait", "spark.driver.memory")
print("told", json.dumps([conf.get(name) for name in names] + [os.environ["PYSPARK_PYTHON"]]))
"""


@pytest.mark.spark
def test_under_spark_submit_the_submission_decides(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(SUBMITTED)
    flags = ("--master", "local[1,2]", "--name", "theirs", "--driver-memory", "600m")
    told = run_python(tmp_path, str(spark_home() / "bin" / "spark-submit"), *flags, str(script))
    assert told == ["local[1,2]", "theirs", "2s", "600m", sys.executable]


BARE_EXECUTORS = """
import json, os, sys
os.environ["PYSPARK_PYTHON"] = sys.argv[1]
from pyspark.sql import SparkSession
from distkeras_grid.errors import EnvironmentMismatchError
from distkeras_grid.spark.session import check_executors
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    check_executors(session)
except EnvironmentMismatchError as error:
    print("told", json.dumps([str(error)]))
"""


@pytest.mark.spark
def test_executors_of_a_bare_interpreter_are_one_error_that_names_both(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    (message,) = run_python(tmp_path, sys.executable, "-c", BARE_EXECUTORS, bare)
    assert bare in message
    assert sys.executable in message
    assert "lacks tensorflow" in message
    assert "lacks distkeras_grid" in message


def run_python(folder, *command):
    """Run a program in a folder from which nothing is imported; return what it told as JSON."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    for name in ("PYTHONPATH", "SPARK_HOME"):
        environment.pop(name, None)
    ended = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=folder,
    )
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("told ")]
    return json.loads(line.removeprefix("told "))

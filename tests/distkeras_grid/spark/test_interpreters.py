"""What executors say of themselves, and whether they come back to the driver."""

import sys
import venv

import pytest

from distkeras_grid.errors import EnvironmentMismatchError, ServerUnreachableError
from distkeras_grid.parameter_server.settings import BindAddress
from distkeras_grid.spark import interpreters
from distkeras_grid.spark.interpreters import (
    check_executors,
    compare_interpreters,
    package_versions,
    refuse_unreachable,
    ship_backend,
    training_packages,
)
from tests.distkeras_grid.spark.programs import run_python

DRIVER = {
    "executable": "/driver/python",
    "python": "3.11",
    "packages": {"keras": "3.15.1", "numpy": "2.4.6"},
}


def executor(**packages):
    found = {**DRIVER["packages"], **packages}
    return {"executable": "/node/python", "host": "node7", "python": "3.11", "packages": found}


@pytest.mark.parametrize(
    ("packages", "python", "words"),
    [
        ({}, "3.11", []),
        ({"keras": None}, "3.11", ["lacks keras"]),
        ({"distkeras_grid": None}, "3.11", ["lacks distkeras_grid"]),
        ({"numpy": "1.26.4"}, "3.11", ["numpy 1.26.4"]),
        ({}, "3.12", ["3.12"]),
    ],
)
def test_a_difference_names_both_interpreters(packages, python, words):
    problems = compare_interpreters(DRIVER, {**executor(**packages), "python": python})
    assert len(problems) == len(words)
    for problem, word in zip(problems, words, strict=True):
        assert all(each in problem for each in (word, "/driver/python", "/node/python"))


def test_builds_of_one_package_count_under_one_name():
    assert package_versions(("tensorflow",))["tensorflow"] is not None
    assert package_versions(("no-such-package",)) == {"no-such-package": None}


def test_a_backend_names_the_packages_that_must_be_the_same():
    assert {"keras", "tensorflow"} < set(training_packages("tensorflow"))
    assert {"keras", "jax", "jaxlib"} < set(training_packages("jax"))
    assert "tensorflow" not in training_packages("jax")


@pytest.mark.spark
def test_the_drivers_backend_is_set_before_a_task_is_unpickled(spark):
    def seen(_rows):
        import os

        yield os.environ.get("KERAS_BACKEND")

    def backends():
        return set(spark.sparkContext.parallelize(range(2), 2).mapPartitions(seen).collect())

    variables = spark.sparkContext.environment
    before = dict(variables)
    try:
        # Processes that run with the one do not run the tasks of the other.
        for name in ("jax", "tensorflow", "jax"):
            ship_backend(spark, name)
            assert backends() == {name}
    finally:
        variables.clear()
        variables.update(before)


@pytest.mark.spark
def test_a_package_that_executors_lack_is_told_before_work(spark, monkeypatch):
    versions = package_versions

    def pretend(names):
        return {**versions(names), "only-here": "1.0"}

    # The driver claims a package that no interpreter has; the executors answer for themselves.
    monkeypatch.setattr(interpreters, "package_versions", pretend)
    with pytest.raises(EnvironmentMismatchError, match="lacks only-here") as caught:
        check_executors(spark, ("numpy", "only-here"))
    assert sys.executable in str(caught.value)


@pytest.mark.spark
def test_executors_with_the_same_packages_reach_the_driver_where_it_listens(spark):
    place = BindAddress("127.0.0.1", "localhost", 0, 0)
    (answer,) = check_executors(spark, training_packages("tensorflow"), place)
    assert answer["executable"] == sys.executable


@pytest.mark.spark
def test_an_address_that_executors_do_not_reach_is_one_error_with_both_ends(spark):
    # Addresses for documentation: nobody has them, and this host answers for none of its own.
    place = BindAddress("127.0.0.1", "127.1.2.3", 0, 0)
    with pytest.raises(ServerUnreachableError) as caught:
        check_executors(spark, training_packages("tensorflow"), place)
    said = str(caught.value)
    assert "do not reach the parameter server at 127.1.2.3:" in said
    assert "the driver listens on 127.0.0.1:" in said
    assert "ConnectionRefusedError" in said
    assert "master_host" in said


def test_another_program_at_the_address_is_not_taken_for_the_driver():
    place = BindAddress("10.0.0.1", "gate", 7000, 16)
    answers = [{"host": "node1", "received": "right"}, {"host": "node2", "received": "SSH-2.0"}]
    with pytest.raises(ServerUnreachableError, match=r"Executors on node2 .* gate:7001 .*SSH-2"):
        refuse_unreachable(place, 7001, "right", answers)
    refuse_unreachable(place, 7001, "right", answers[:1])


BARE_EXECUTORS = """
import json, os, sys
os.environ["PYSPARK_PYTHON"] = sys.argv[1]
from pyspark.sql import SparkSession
from distkeras_grid.errors import EnvironmentMismatchError
from distkeras_grid.spark.interpreters import check_executors, training_packages
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    check_executors(session, training_packages("tensorflow"))
except EnvironmentMismatchError as error:
    print("told", json.dumps([str(error)]))
"""


@pytest.mark.full
@pytest.mark.spark
def test_executors_of_a_bare_interpreter_are_one_error_that_names_both(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    (message,) = run_python(tmp_path, sys.executable, "-c", BARE_EXECUTORS, bare)
    assert bare in message
    assert sys.executable in message
    assert "lacks tensorflow" in message
    assert "lacks distkeras_grid" in message

"""The session and the check of executors' interpreters."""

from __future__ import annotations

import sys

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
    assert compare_interpreters(DRIVER, executor(distkeras_grid="installed")) == []


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

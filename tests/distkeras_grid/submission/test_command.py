"""The command line of spark-submit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.spark.memory import driver_overhead_mb, executor_overhead_mb
from distkeras_grid.submission.command import (
    SET_BY_SUBMIT,
    Submission,
    command_line,
    parse_settings,
)


def submission(**changes: Any) -> Submission:
    told: dict[str, Any] = {
        "program": "job.py",
        "arguments": ["--data", "a b"],
        "environment": "hdfs:///e/environment-1.tar.gz",
        "py_files": ["package.zip", "nets.py"],
        "name": "a job",
        "tag": "tag-1",
    }
    return Submission(**{**told, **changes})


def words(**changes: Any) -> list[str]:
    return command_line(submission(**changes), spark_submit="spark-submit", python="/here/python")


def conf(command: list[str]) -> dict[str, str]:
    given = [value for flag, value in pairwise(command) if flag == "--conf"]
    names = [text.partition("=")[0] for text in given]
    assert len(names) == len(set(names)), "a setting is given twice"
    return dict(text.split("=", 1) for text in given)


def test_client_mode_on_yarn_as_a_whole():
    assert words() == [
        *("spark-submit", "--master", "yarn", "--deploy-mode", "client"),
        *("--archives", "hdfs:///e/environment-1.tar.gz#environment"),
        *("--py-files", "package.zip,nets.py"),
        *("--conf", "spark.app.name=a job", "--conf", "spark.executor.cores=1"),
        *("--conf", "spark.executor.memory=1g", "--conf", "spark.driver.memory=1g"),
        *("--conf", "spark.pyspark.python=./environment/bin/python"),
        *("--conf", "spark.executorEnv.PYTHONNOUSERSITE=1"),
        *("--conf", "spark.executorEnv.KERAS_BACKEND=tensorflow"),
        *("--conf", "spark.executorEnv.LC_ALL=C.UTF-8"),
        *("--conf", "spark.dynamicAllocation.enabled=false"),
        *("--conf", "spark.pyspark.driver.python=/here/python"),
        *("--conf", "spark.executor.instances=2"),
        *("--conf", f"spark.executor.memoryOverhead={executor_overhead_mb()}m"),
        *("--conf", "spark.executor.maxNumFailures=200"),
        *("--conf", "spark.executor.failuresValidityInterval=1h"),
        *("--conf", "spark.yarn.tags=tag-1"),
        *("job.py", "--data", "a b"),
    ]


IN_CLUSTER = {"deploy_mode": "cluster", "executors": 3, "executor_cores": 2}
KERBEROS_SETTINGS = {
    "spark.kerberos.principal": "me@REALM",
    "spark.kerberos.keytab": "/me.keytab",
}
OF_USER = {
    "spark.executor.memoryOverhead": "2g",
    "spark.executor.instances": "7",
    "spark.app.name": "mine",
    "spark.yarn.maxAppAttempts": "3",
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            IN_CLUSTER,
            {
                "spark.yarn.maxAppAttempts": "1",
                "spark.yarn.appMasterEnv.PYSPARK_PYTHON": "./environment/bin/python",
                "spark.yarn.appMasterEnv.LC_ALL": "C.UTF-8",
                "spark.yarn.submit.waitAppCompletion": "false",
                "spark.yarn.tags": "tag-1",
                "spark.pyspark.driver.python": None,
                "spark.driver.memoryOverhead": f"{driver_overhead_mb(workers=6)}m",
                "spark.executor.memoryOverhead": f"{executor_overhead_mb(slots=2)}m",
            },
        ),
        # Driver and executors have the backend of this process.
        (
            {**IN_CLUSTER, "backend": "jax"},
            {
                f"spark.{process}Env.KERAS_BACKEND": "jax"
                for process in ("executor", "yarn.appMaster")
            },
        ),
        # What the user sets wins; their tags stand beside that by which submit finds it again.
        ({**IN_CLUSTER, "settings": OF_USER}, OF_USER),
        ({"settings": {"spark.yarn.tags": "team"}}, {"spark.yarn.tags": "tag-1,team"}),
        ({"queue": "nightly"}, {"spark.yarn.queue": "nightly"}),
        ({"principal": "me@REALM", "keytab": "/me.keytab"}, KERBEROS_SETTINGS),
        ({}, dict.fromkeys(("spark.yarn.queue", *KERBEROS_SETTINGS))),
    ],
)
def test_what_is_asked_for_becomes_settings(changes: dict[str, Any], expected: dict[str, Any]):
    settings = conf(words(**changes))
    assert {name: settings.get(name) for name in expected} == expected


def test_a_standalone_cluster_knows_nothing_of_yarn():
    command = words(master="spark://host:7077", executors=3, executor_cores=2)
    assert not any("yarn" in word or "Overhead" in word for word in command)
    assert conf(command)["spark.cores.max"] == "6"
    assert conf(command)["spark.pyspark.python"] == "./environment/bin/python"


@pytest.mark.parametrize("name", SET_BY_SUBMIT)
def test_what_submit_relies_on_is_not_overridden_without_a_word(name):
    """A flag won over it, or `submit` waited for an answer that did not come."""
    with pytest.raises(ConfigurationError, match=f"submit itself sets {name}"):
        parse_settings([f"{name}=true"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"master": "local[2]"}, "--master must be yarn, or spark://host:port"),
        ({"master": "spark://h:1", "deploy_mode": "cluster"}, "Leave out --deploy-mode cluster"),
        ({"executors": 0}, "--executors must be at least 1. Received: 0"),
        ({"executor_cores": -1}, "--executor-cores must be at least 1"),
        ({"executor_memory": "512"}, "--executor-memory must be a size such as 512m or 2g"),
        ({"driver_memory": "0g"}, "--driver-memory must be a size"),
        ({"principal": "me"}, "--principal and --keytab go together"),
    ],
)
def test_what_cannot_be_submitted_is_refused(changes: dict[str, Any], said: str):
    with pytest.raises(ConfigurationError, match=said.replace("[", r"\[")):
        submission(**changes)


@pytest.mark.parametrize("text", ["spark.ui.enabled", "executor.cores=1", "=1"])
def test_a_setting_that_is_none(text: str):
    with pytest.raises(ConfigurationError, match=r"--conf takes spark\.NAME=VALUE"):
        parse_settings([text])

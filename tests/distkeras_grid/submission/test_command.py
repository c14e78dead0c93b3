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


def test_driver_and_executors_have_the_backend_of_this_process():
    settings = conf(words(deploy_mode="cluster", backend="jax"))
    assert settings["spark.executorEnv.KERAS_BACKEND"] == "jax"
    assert settings["spark.yarn.appMasterEnv.KERAS_BACKEND"] == "jax"


def test_cluster_mode_has_the_container_s_python_one_attempt_and_a_tag():
    settings = conf(words(deploy_mode="cluster", executors=3, executor_cores=2))
    assert settings["spark.yarn.maxAppAttempts"] == "1"
    assert settings["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] == "./environment/bin/python"
    assert settings["spark.yarn.appMasterEnv.LC_ALL"] == "C.UTF-8"
    assert settings["spark.yarn.submit.waitAppCompletion"] == "false"
    assert settings["spark.yarn.tags"] == "tag-1"
    assert "spark.pyspark.driver.python" not in settings
    assert settings["spark.driver.memoryOverhead"] == f"{driver_overhead_mb(workers=6)}m"
    assert settings["spark.executor.memoryOverhead"] == f"{executor_overhead_mb(slots=2)}m"


def test_a_standalone_cluster_knows_nothing_of_yarn():
    command = words(master="spark://host:7077", executors=3, executor_cores=2)
    assert not any("yarn" in word or "Overhead" in word for word in command)
    assert conf(command)["spark.cores.max"] == "6"
    assert conf(command)["spark.pyspark.python"] == "./environment/bin/python"


def test_what_the_user_sets_wins():
    given = {
        "spark.executor.memoryOverhead": "2g",
        "spark.executor.instances": "7",
        "spark.app.name": "mine",
        "spark.yarn.maxAppAttempts": "3",
    }
    assert given.items() <= conf(words(deploy_mode="cluster", settings=given)).items()


def test_the_users_tags_stand_beside_that_by_which_submit_finds_the_application():
    (tag,) = [conf(words())["spark.yarn.tags"]]
    assert conf(words(settings={"spark.yarn.tags": "team"}))["spark.yarn.tags"] == f"{tag},team"


@pytest.mark.parametrize("name", SET_BY_SUBMIT)
def test_what_submit_relies_on_is_not_overridden_without_a_word(name):
    """A flag won over it, or `submit` waited for an answer that did not come."""
    with pytest.raises(ConfigurationError, match=f"submit itself sets {name}"):
        parse_settings([f"{name}=true"])


def test_queue_and_kerberos_are_passed_on():
    given = {
        "spark.yarn.queue": "nightly",
        "spark.kerberos.principal": "me@REALM",
        "spark.kerberos.keytab": "/me.keytab",
    }
    found = conf(words(queue="nightly", principal="me@REALM", keytab="/me.keytab"))
    assert given.items() <= found.items()
    assert not given.keys() & conf(words()).keys()


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

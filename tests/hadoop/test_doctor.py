"""The doctor's page on YARN, as somebody reads it who has never run Spark there."""

from __future__ import annotations

import re

import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.spark.memory import ModelSize, executor_overhead_mb
from distkeras_grid.submission import run_verb

pytestmark = [pytest.mark.full, pytest.mark.hadoop]


def examined(grid, project, *options):
    """Run the doctor by plain ``spark-submit``; return the process and the lines of its checks."""
    ended = grid.submit(
        *("--conf", f"spark.executorEnv.PYTHONPATH={project}"),
        *options,
        *(str(run_verb.__file__), "doctor", "--workers", "2", "--model", "70k"),
        *("--storage", "hdfs:///doctor/runs"),
        PYTHONPATH=str(project),
    )
    return ended, [line for line in ended.stdout.splitlines() if re.match(r"ok |warn |BAD ", line)]


def test_a_fresh_sandbox_is_good_for_plain_spark_submit(grid, project):
    ended, lines = examined(grid, project)
    assert ended.returncode == ExitCode.OK, ended.stdout + ended.stderr[-4000:]
    assert [line for line in lines if line.startswith("BAD")] == []


def test_containers_too_small_are_the_one_thing_that_is_bad(grid, project):
    # Spark's own default.
    ended, lines = examined(grid, project, "--conf", "spark.executor.memoryOverhead=384m")
    assert ended.returncode == ExitCode.CLUSTER, ended.stdout + ended.stderr[-4000:]
    found = {line[6:].split("  ")[0]: line for line in lines}
    assert [name for name in found if found[name].startswith("BAD")] == ["executor memory"]
    # Each setting and value that a user may copy, and what each finding is about.
    needed = executor_overhead_mb(ModelSize(70_000))
    assert f"spark.executor.memoryOverhead={needed}m" in found["executor memory"]
    assert "core-site.xml" in found["hadoop"]
    assert "application_" in found["session"]
    assert "tensorflow 2." in found["executors"]
    assert grid.hdfs in found["storage"]
    assert {"slots", "server"} <= found.keys()

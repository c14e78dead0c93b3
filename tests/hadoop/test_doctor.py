"""The doctor's page on YARN, as somebody reads it who has never run Spark there."""

from __future__ import annotations

import re

import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.spark.memory import ModelSize, executor_overhead_mb

pytestmark = [pytest.mark.hadoop]


def test_containers_too_small_are_the_one_thing_that_is_bad(grid, project):
    ended = grid.submit(
        *("--conf", f"spark.executorEnv.PYTHONPATH={project}"),
        str(project / "jobs" / "doctor.py"),
        *("--workers", "2", "--model", "70k", "--storage", "hdfs:///doctor/runs"),
        PYTHONPATH=str(project),
    )
    lines = [line for line in ended.stdout.splitlines() if re.match(r"ok |warn |BAD ", line)]
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

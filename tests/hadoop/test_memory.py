"""YARN's killer of containers, which looks every second at what they take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from distkeras_grid.spark.memory import MB, ModelSize, executor_overhead_mb

pytestmark = [pytest.mark.full, pytest.mark.hadoop]

JOB = Path(__file__).with_name("memory_job.py")


@pytest.mark.promise(
    "executor: killed by YARN for its memory",
    "The error names the setting to raise, and a value.",
)
def test_data_larger_than_the_container_are_trained_and_a_killed_worker_names_the_setting(
    grid, project
):
    # What the check before a run asks for, of which Python takes most: there is no room for 1 GB.
    overhead = executor_overhead_mb(ModelSize(34, block_bytes=2 * MB))
    ended = grid.submit(
        *("--num-executors", "1", "--conf", f"spark.executor.memoryOverhead={overhead}m"),
        *("--conf", "spark.task.maxFailures=1"),
        *("--conf", f"spark.executorEnv.PYTHONPATH={project}"),
        str(JOB),
        PYTHONPATH=str(project),
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-6000:]
    assert "trained 4000" in ended.stdout
    (died,) = [line for line in ended.stdout.splitlines() if line.startswith("died: ")]
    # The setting that a user copies; how much, of what YARN has seen, is in spark/test_launch.py.
    (value,) = re.findall(r"spark\.executor\.memoryOverhead=(\d+)m", died)
    assert int(value) > overhead

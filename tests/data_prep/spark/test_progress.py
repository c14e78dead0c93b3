import threading

import pytest

from data_prep.spark.progress import task_progress
from distkeras_grid import progress

pytestmark = pytest.mark.spark


def test_says_how_far_the_tasks_are(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT", 0.05)
    monkeypatch.setattr(progress.Lines, "interval", 0.05)
    gate = tmp_path / "gate"
    lines = []
    spoke = threading.Event()

    def say(line):
        lines.append(line)
        if "1 of 2 tasks" in line:
            spoke.set()
            gate.touch()

    def wait_at_the_gate(index, rows, gate=str(gate)):
        import os
        import time

        deadline = time.monotonic() + 30
        while index == 1 and not os.path.exists(gate) and time.monotonic() < deadline:
            time.sleep(0.01)
        return rows

    with task_progress(spark, "waiting", say):
        spark.sparkContext.parallelize(range(2), 2).mapPartitionsWithIndex(wait_at_the_gate).count()
    assert spoke.is_set()
    assert lines[-1].startswith("waiting  ")

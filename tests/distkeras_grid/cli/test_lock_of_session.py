"""`--lock` of a verb that drives Spark itself: the JVM outlives a command that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distkeras_grid.cli.lock import hold_lock
from distkeras_grid.errors import BusyError

pytestmark = [pytest.mark.spark, pytest.mark.full]

COMMAND = """
import sys
from distkeras_grid import build_session
from distkeras_grid.cli.lock import hold_lock
from pyspark import SparkContext

with hold_lock(sys.argv[1], "tile"):
    session = build_session("locked", master="local[1]", settings={"spark.locality.wait": "2s"})
    conf = session.sparkContext.getConf()
    print(SparkContext._gateway.proc.pid, conf.get("spark.locality.wait"), session.range(3).count())
    sys.stdout.flush()
    sys.stdin.readline()
with hold_lock(sys.argv[1], "tile"):
    ended = SparkContext._active_spark_context is None
    print("free", ended, SparkContext._gateway.proc.poll())
"""


@pytest.fixture
def command(tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_a_command_that_is_killed_leaves_the_lock_to_its_jvm(command, tmp_path: Path):
    lock = str(tmp_path / "lock")
    with command:
        try:
            jvm, *session = command.stdout.readline().split()
            assert session == ["2s", "3"]
            # It would end by itself, and its application with it, a moment later.
            os.kill(int(jvm), signal.SIGSTOP)
        finally:
            command.kill()
    try:
        with pytest.raises(BusyError, match=f"process {command.pid}"):
            hold_lock(lock, "train").__enter__()
    finally:
        os.kill(int(jvm), signal.SIGCONT)
    deadline = time.monotonic() + 60
    while True:
        try:
            with hold_lock(lock, "train"):
                return
        except BusyError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_at_the_end_the_work_stops_and_then_the_lock_is_free(command):
    with command:
        try:
            command.stdout.readline()
            out, _ = command.communicate("\n", timeout=120)
        finally:
            command.kill()
    # The JVM still runs then, without a session.
    assert out.split() == ["free", "True", "None"]

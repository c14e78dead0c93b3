"""A program on a standalone cluster whose executors have a shipped Python; no HDFS, no YARN."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from distkeras_grid.submission.archive import Environment, build, this_environment
from distkeras_grid.submission.installed_packages import installed
from distkeras_grid.submission.interpreter import this_interpreter
from tests.cluster import Cluster, driver_environment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="archives are packed on Linux"),
]

PROGRAM = """
import json, sys
from helping import looked_up
from pyspark.sql import SparkSession
context = SparkSession.builder.getOrCreate().sparkContext
seen = context.parallelize(range(2), 2).map(lambda _: looked_up()).collect()
print("SEEN", json.dumps({"driver": looked_up(), "executors": seen}))
sys.exit(17)
"""
HELPING = """
def looked_up():
    import sys, distkeras_grid, psutil
    return [sys.executable, psutil.__file__, distkeras_grid.__file__]
"""


@pytest.mark.full
def test_executors_have_the_shipped_python_and_the_exit_code_comes_through(
    cluster: Cluster, tmp_path: Path
):
    package = installed(metadata.distribution("psutil"))
    # A small archive stands where the whole one is looked for.
    archive = tmp_path / "distkeras_grid" / "environments" / this_environment().name
    build(Environment(this_interpreter(), (package,)), archive, lambda _: None)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helping.py").write_text(HELPING)
    command = Path(sys.executable).with_name("distkeras-grid")
    done = subprocess.run(
        [
            *(str(command), "submit", "--master", cluster.url),
            *("--executor-memory", "512m", "--driver-memory", "512m"),
            *("--py-files", str(tmp_path / "helping.py"), str(tmp_path / "program.py")),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        # What executors would take if nothing were shipped.
        env={
            **driver_environment(),
            "PYSPARK_PYTHON": "/nowhere/python",
            "XDG_CACHE_HOME": str(tmp_path),
        },
    )
    assert done.returncode == 17, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("SEEN "))
    seen = json.loads(line.removeprefix("SEEN "))
    # The command's own, also where the environment was reached through a link.
    here = Path(sys.executable).parent.resolve()
    assert Path(seen["driver"][0]).parent.resolve() == here
    for python, psutil, project in seen["executors"]:
        assert python.endswith("/environment/bin/python")
        assert "/environment/lib/" in psutil
        assert ".zip/" in project

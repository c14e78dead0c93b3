"""Every benchmark runs: one that does not fit what it measures any more would be found too late."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from tests.benchmarks.smallest import names

#: These need neither a JVM nor TensorFlow.
QUICK = ("fuzz", "scale likeness", "tiling")
OTHERS = [
    pytest.param(name, marks=[pytest.mark.spark, pytest.mark.tensorflow])
    for name in names()
    if name not in QUICK
]


def test_each_module_can_be_imported(project):
    modules = sorted(path.stem for path in (project / "tests" / "benchmarks").glob("[!_]*.py"))
    for name in modules:
        importlib.import_module(f"tests.benchmarks.{name}")


@pytest.mark.parametrize("name", [*QUICK, *OTHERS])
@pytest.mark.full
def test_each_runs_at_its_smallest_size(name, project):
    # A session and the kernels of TensorFlow are a process's own.
    ended = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.smallest", *name.split()],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert len(ended.stdout.splitlines()) > 1

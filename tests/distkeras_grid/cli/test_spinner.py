"""A step that takes long says so; a short one says nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from distkeras_grid.cli.spinner import spinner
from tests.cluster import driver_environment, standalone_cluster


def test_a_short_step_is_silent(capsys):
    with spinner("starting Spark"):
        pass
    assert capsys.readouterr().err == ""


SESSION = """
import sys
from distkeras_grid.cli.spinner import start_spark
from distkeras_grid.errors import StartTimeoutError
try:
    start_spark("waiting", sys.argv[1], seconds=float(sys.argv[2]))
except StartTimeoutError as error:
    sys.exit(f"StartTimeoutError: {error}")
"""


@pytest.mark.full
@pytest.mark.cluster
@pytest.mark.parametrize(("workers", "seconds"), [(0, 9), (1, 120)])
def test_a_session_says_that_it_waits_for_executors(workers, seconds, tmp_path):
    """A master without a worker accepts an application, and gives it nothing."""
    with standalone_cluster(tmp_path, workers) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", SESSION, cluster.url, str(seconds)],
            check=False,
            capture_output=True,
            text=True,
            timeout=200,
            env=driver_environment(),
        )
    said = [line for line in done.stderr.splitlines() if line.startswith("waiting for executors")]
    assert (done.returncode == 0) == bool(workers)
    if not workers:
        assert len(said) >= 2
        assert "StartTimeoutError: No executor has come in 9 s" in done.stderr

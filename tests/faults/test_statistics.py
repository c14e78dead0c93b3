"""A worker dies or hangs while batch normalization's statistics are measured again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cluster import driver_environment
from tests.faults.counting import lives
from tests.faults.statistics_job import REACHED, ROWS, START_SECONDS

pytestmark = [pytest.mark.full, pytest.mark.faults, pytest.mark.cluster, pytest.mark.tensorflow]

TIMEOUT = 300.0
#: Seconds that a driver may take beyond its deadline, to cancel the job.
CANCEL_SECONDS = 15.0


def run(cluster, project, folder, fault):
    command = [sys.executable, "-m", "tests.faults.statistics_job", cluster.url, str(folder), fault]
    ended = subprocess.run(
        command,
        cwd=project,
        env=driver_environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((folder / "result.json").read_text())
    # Whatever happened, the training is complete, no job goes on and the session can be used.
    assert result["samples"] == ROWS
    assert result["active_jobs"] == []
    assert result["rows_of_another_job"] == 100
    assert not lives(int((folder / REACHED).read_text())) or fault == "nothing"
    return result


@pytest.mark.promise(
    "worker: killed while statistics are measured again",
    "Its next attempt measures its rows; the statistics are those of all rows.",
)
def test_a_killed_worker_measures_again(cluster, project, tmp_path):
    found = {}
    for fault in ("nothing", "kill"):
        (tmp_path / fault).mkdir()
        found[fault] = run(cluster, project, tmp_path / fault, fault)
        assert found[fault]["statistics"] == "recalibrate"
    assert found["kill"]["measured"] == found["nothing"]["measured"]
    # Variances are means of those of batches.
    assert found["kill"]["measured"][0] == pytest.approx(found["kill"]["true"], rel=1e-5)


@pytest.mark.promise(
    "worker: stopped while statistics are measured again",
    "The job is cancelled after its deadline; the model is complete, with the workers' averages.",
)
def test_a_worker_that_hangs_does_not_take_the_model_away(cluster, project, tmp_path):
    result = run(cluster, project, tmp_path, "stop")
    assert result["statistics"] == "average"
    assert result["measured"][0] != pytest.approx(result["true"], rel=1e-2)
    assert result["seconds_after"] < 2 * START_SECONDS + CANCEL_SECONDS

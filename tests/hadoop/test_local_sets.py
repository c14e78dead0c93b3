"""Local sets, and tiles that nobody has written, on YARN: workers read HDFS by themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hdfs import InsecureClient

from tests.hadoop.conftest import Grid, upload_samples

pytestmark = [pytest.mark.full, pytest.mark.hadoop, pytest.mark.tensorflow]

JOB = Path(__file__).with_name("local_sets_job.py")
ROOT = "/local-sets"


def test_workers_draw_from_tiles_and_from_images_on_hdfs(
    grid: Grid, client: InsecureClient, project: Path, samples: Path
) -> None:
    upload_samples(client, samples, f"{ROOT}/images", classes=3)
    ended = grid.submit(
        *("--conf", "spark.executor.memoryOverhead=1536m"),
        *("--conf", f"spark.executorEnv.PYTHONPATH={project}"),
        *(str(JOB), f"hdfs://{ROOT}/images", f"hdfs://{ROOT}/tiles"),
        timeout=900,
        PYTHONPATH=str(project),
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-6000:]
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    told = {each.pop("name"): each for each in lines}
    assert set(told) == {"tiles", "images"}
    for name, folder in (("tiles", "tiles"), ("images", "tiles-index")):
        run = told[name]
        # Two iterations of two workers, all of whose bytes come from HDFS.
        assert run["sets"] == [[24, 12]] * 4
        assert run["samples"] == 4 * 24
        assert run["failures"] == 0
        assert run["read"] == [f"{grid.hdfs}{ROOT}/{folder}"]

"""The oldest PySpark that setup.py takes, installed beside the packages of this environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.cluster import JAVA_OPTIONS

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.tensorflow]

CLASSES = ("class0", "class1", "class2")


def oldest_claimed() -> str:
    """Return the version from which on setup.py takes PySpark, ``major.minor.0``."""
    asked = [Requirement(line) for line in requires("distkeras_grid") or ()]
    (spark,) = [each for each in asked if each.name == "pyspark"]
    (least,) = [each.version for each in spark.specifier if each.operator == ">="]
    return f"{least}.0" if least.count(".") == 1 else least


@pytest.fixture(scope="module")
def oldest(project: Path) -> Path:
    """A folder with that PySpark; it is kept, for 450 MB have to be downloaded."""
    folder = project / "build" / "tests" / f"pyspark-{oldest_claimed()}"
    if not folder.exists():
        partial = folder.with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        wanted = f"pyspark=={oldest_claimed()}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(partial), wanted]
        done = subprocess.run(pip, check=False, capture_output=True, text=True, timeout=900)
        if done.returncode:
            pytest.skip(f"{wanted} cannot be installed here: {done.stderr.strip()[-500:]}")
        partial.rename(folder)
    return folder


def test_tiling_training_and_predictions(
    oldest: Path, project: Path, samples: Path, tmp_path: Path
) -> None:
    for name in CLASSES:
        (tmp_path / "images" / name).mkdir(parents=True)
        for path in sorted((samples / name).glob("*.png"))[:3]:
            shutil.copy(path, tmp_path / "images" / name)
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (oldest, project)))
    # The archive of classes is that of another Spark.
    environment["SPARK_SUBMIT_OPTS"] = JAVA_OPTIONS
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("journey.py")), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        # Where the user's own module lies.
        cwd=project / "tests" / "jobs",
        env=environment,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    manifest = json.loads((tmp_path / "tiles" / "_versions" / "0.json").read_text())
    for trainer in ("ADAG", "AveragingTrainer"):
        run = json.loads((tmp_path / trainer / "run.json").read_text())
        assert run["versions"]["pyspark"] == manifest["versions"]["pyspark"] == oldest_claimed()
        assert [worker["worker"] for worker in run["workers"]] == [0, 1]
        assert run["samples"] == 2 * run["spec"]["schedule"]["rows"] > 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["rows"] == sum(map(sum, figures["confusion"])) > 0

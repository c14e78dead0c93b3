"""The job from IDX files to the page, as a user calls it."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys

import numpy as np
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]


def idx_of(array):
    head = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.tobytes())


@pytest.fixture
def fashion(tmp_path):
    """Four small files; the label is the brightness."""
    folder = tmp_path / "fashion"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for prefix, rows in (("train", 300), ("t10k", 60)):
        labels = (np.arange(rows) % 2).astype(np.uint8)
        images = rng.integers(0, 100, (rows, 28, 28), dtype=np.uint8)
        images += 150 * labels[:, np.newaxis, np.newaxis]
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx_of(images))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(idx_of(labels))
    return folder


def call(project, *flags):
    return subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.studies.compare_trainers", *map(str, flags)],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


@pytest.mark.full
def test_from_idx_files_to_the_page_and_on_from_there(project, fashion, tmp_path):
    study = tmp_path / "study"
    flags = ("--fashion-mnist", fashion, "--output", study, "--rows", 200, "--batches", 16)
    flags += ("--models", "mlp", "--seeds", 1, "--workers", 2)
    ended = call(project, *flags, "--trainers", "local", "--epochs", 4)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 of 1: mlp, batch 16, seed 1: local, all cores" in ended.stdout
    (cell,) = json.loads((study / "results.json").read_text())["cells"]
    assert cell["end_accuracy"] > 0.6
    conditions = json.loads((study / "conditions.json").read_text())
    assert (conditions["rows"], conditions["test_rows"], conditions["classes"]) == (200, 60, 2)
    assert 10 <= conditions["validation_rows"] <= 60
    assert "Fashion-MNIST" in (study / "index.html").read_text()

    ended = call(project, *flags, "--trainers", "local,DOWNPOUR", "--epochs", 4)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 cells, 1 of them measured before" in ended.stdout
    assert "Distributed training takes longer" in (study / "index.html").read_text()


@pytest.mark.parametrize(
    ("flags", "code", "error"),
    [
        (("--trainers", "ADAM"), 2, "ConfigurationError"),
        pytest.param(("--batches", "33"), 2, "ConfigurationError", marks=pytest.mark.full),
        pytest.param(("--epochs", "0"), 2, "ConfigurationError", marks=pytest.mark.full),
        pytest.param(
            ("--workers", "4", "--master", "local[2]"),
            *(5, "NotEnoughSlotsError"),
            marks=pytest.mark.full,
        ),
    ],
)
def test_wrong_flags_end_before_spark_starts(project, tmp_path, flags, code, error):
    ended = call(project, "--data", tmp_path, "--output", tmp_path / "study", *flags)
    assert ended.returncode == code
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{error}: ")
    assert flags[1] in last
    assert "Spark" not in ended.stderr
    assert not (tmp_path / "study").exists()

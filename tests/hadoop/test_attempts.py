"""More than one attempt: YARN starts another driver, which goes on from a checkpoint."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hdfs import HdfsError, InsecureClient

from tests.hadoop.conftest import Grid, read_json, wait_for
from tests.hadoop.counting_net import BATCH, LABEL, ROWS
from tests.hadoop.test_submit import CLUSTER, SMALL
from tests.processes import processes

pytestmark = [pytest.mark.full, pytest.mark.hadoop, pytest.mark.tensorflow]

ROOT, EPOCHS, SECONDS = "/attempts", 120, 600.0
MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"


@pytest.fixture(scope="module")
def rows(client: InsecureClient) -> str:
    """Numbered rows in two files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        for part in range(2):
            numbers = np.arange(part, ROWS, 2)
            columns = {"x": numbers.astype(np.float32), "label": np.full(len(numbers), LABEL)}
            pq.write_table(pa.table(columns), f"{folder}/{part}.parquet")
        client.upload(f"{ROOT}/rows", folder)
    return f"{ROOT}/rows"


def masters(identifier: str) -> list[int]:
    """Processes of the application master itself, without the shell that starts it."""
    number = identifier.removeprefix("application_")
    return [
        pid
        for pid, _, command in processes()
        if MASTER in command and number in command and "/bin/java" in command.split(None, 1)[0]
    ]


def samples_kept(client: InsecureClient, folder: str) -> int:
    """Samples of the newest checkpoint; 0 if there is none yet."""
    if client.status(folder, strict=False) is None:
        return 0
    names = sorted(name for name in client.list(folder) if name.startswith("checkpoint-"))
    try:
        return int(read_json(client, f"{folder}/{names[-1]}/manifest.json")["samples"])
    except (IndexError, HdfsError):
        # It was replaced by a newer one meanwhile.
        return 0


def train_and_kill(
    grid: Grid, project: Path, begun: Callable[[], object], *flags: str
) -> tuple[str, str]:
    """Submit a training with two attempts, and kill the first driver once something is there.

    Return the application's id and what the command wrote to standard error.
    """
    with grid.background(
        *("submit", *SMALL, *CLUSTER, "--conf", "spark.yarn.maxAppAttempts=2"),
        *("--py-files", str(project / "tests" / "hadoop" / "counting_net.py")),
        *("train", "--features", "x", "--trainer", "DOWNPOUR", "--workers", "2"),
        *("--batch-size", str(BATCH), "--set", "communication_window=2", *flags),
    ) as process:
        assert process.stdout is not None
        identifier = process.stdout.readline().strip()
        assert re.fullmatch(r"application_\d+_\d+", identifier), process.communicate()
        wait_for(begun, process)
        (master,) = masters(identifier)
        os.kill(master, signal.SIGKILL)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert not masters(identifier)
    return identifier, err


@pytest.mark.promise(
    "driver: killed in YARN's container, `spark.yarn.maxAppAttempts=2`",
    "YARN starts another one, which goes on from the checkpoint; exact.",
)
def test_a_killed_application_master_is_started_again_and_every_row_counts_once_an_epoch(
    grid: Grid, client: InsecureClient, rows: str, project: Path, tmp_path: Path
) -> None:
    checkpoints = f"{ROOT}/checkpoints"
    identifier, err = train_and_kill(
        grid,
        project,
        lambda: samples_kept(client, checkpoints),
        *("--data", rows, "--model", "counting_net:build", "--epochs", str(EPOCHS)),
        *("--output", f"{ROOT}/run", "--checkpoint-dir", checkpoints, "--checkpoint-every", "1"),
    )
    assert "FAILED" not in err
    run = read_json(client, f"{ROOT}/run/run.json")
    assert run["samples"] == ROWS * EPOCHS
    (resumed,) = run["resumed"]
    assert resumed["restarted"] == "driver"
    assert 0 < resumed["samples"] < ROWS * EPOCHS
    generation = read_json(client, f"{checkpoints}/generation-00000002.json")
    assert generation["number"] == 2
    assert generation["driver"] == {"application": identifier, "attempt": 2}
    import keras

    client.download(f"{ROOT}/run/model.keras", str(tmp_path / "model.keras"))
    model = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model.get_weights()[0], np.full((ROWS, 1), EPOCHS))


@pytest.mark.promise(
    "driver: killed in YARN's container after its output is whole, `spark.yarn.maxAppAttempts=2`",
    "YARN starts another one, which finds the run of the first and has succeeded.",
)
def test_an_application_master_that_dies_after_its_output_is_whole_has_succeeded(
    grid: Grid, client: InsecureClient, rows: str, project: Path
) -> None:
    output, checkpoints = f"{ROOT}/whole", f"{ROOT}/whole-checkpoints"
    identifier, _ = train_and_kill(
        grid,
        project,
        lambda: client.status(f"{output}/run.json", strict=False),
        *("--data", rows, "--model", "counting_net:build_and_linger", "--epochs", "2"),
        # The scheme, so that a check before Spark could find the output, too.
        *("--output", f"{grid.hdfs}{output}", "--checkpoint-dir", checkpoints),
    )
    run = read_json(client, f"{output}/run.json")
    assert run["driver"] == {"application": identifier, "attempt": 1}
    # The second attempt has not begun to train.
    assert read_json(client, f"{checkpoints}/generation-00000001.json")["number"] == 1
    assert sorted(client.list(output)) == ["history.jsonl", "model.keras", "run.json"]

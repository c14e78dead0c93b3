"""Runs beside each other and after each other: each of them is counted exactly."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from distkeras_grid.errors import WorkerFailedError
from tests.cluster import driver_environment
from tests.faults.counting import at_epoch, counting_data
from tests.faults.together_job import EPOCHS, ROWS, trainer_of

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.tensorflow]

SECONDS = 240.0


@pytest.mark.full
@pytest.mark.promise(
    "nothing; two runs at once on one driver",
    "Both are exact.",
)
def test_two_runs_at_once_on_one_driver(spark, tmp_path):
    both = threading.Barrier(2)

    def train(trainer):
        # Neither has ended when the other one trains.
        met = at_epoch(1, lambda: both.wait(SECONDS))
        model = trainer.train(counting_data(spark, ROWS), seed=1, callbacks=[met])
        return trainer.history.samples, model.get_weights()[0]

    trainers = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        trainers.append(trainer_of(tmp_path / name, num_workers=1))
    with ThreadPoolExecutor(2) as pool:
        for samples, weights in pool.map(train, trainers):
            assert samples == ROWS * EPOCHS
            np.testing.assert_array_equal(weights, np.full((ROWS, 1), EPOCHS))
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


@pytest.mark.full
@pytest.mark.promise(
    "a run: has failed, and another one follows in the same session",
    "The second is exact.",
)
def test_a_run_after_a_failed_one(spark, tmp_path):
    def loss(_, predicted):
        from pyspark import TaskContext

        if TaskContext.get() is None:  # The driver computes it once, to see what it gives.
            return predicted[:, 0, 0]
        raise ValueError("no such class: basalt")

    import distkeras_grid
    from tests.faults.counting import counting_model

    failing = distkeras_grid.DOWNPOUR(
        counting_model(ROWS, loss),
        num_workers=2,
        features_col="x",
        custom_objects={"loss": loss},
        progress=False,
    )
    with pytest.raises(WorkerFailedError):
        failing.train(counting_data(spark, ROWS), seed=1)
    trainer = trainer_of(tmp_path)
    model = trainer.train(counting_data(spark, ROWS), seed=1)
    assert trainer.history.samples == ROWS * EPOCHS
    np.testing.assert_array_equal(model.get_weights()[0], np.full((ROWS, 1), EPOCHS))


@pytest.mark.full
@pytest.mark.parametrize(("drivers", "runs"), [(1, 2), (2, 1)], ids=["threads", "drivers"])
@pytest.mark.promise(
    "nothing; two runs at once on one host, with the same `master_port`",
    "The second server takes the next port; both are exact.",
)
def test_two_runs_at_once_that_ask_for_one_port(project, tmp_path, drivers, runs):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = (str(tmp_path), str(runs), str(2 - runs), str(port))
    command = [sys.executable, "-m", "tests.faults.together_job", *arguments]
    environment = {**os.environ, **driver_environment()}
    processes = [
        subprocess.Popen(
            command,
            cwd=project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(drivers)
    ]
    try:
        told = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * drivers, told
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result-*.json")]
    assert len(results) == 2, told
    for result in results:
        assert result["samples"] == ROWS * EPOCHS
        assert result["weights"] == [EPOCHS] * ROWS

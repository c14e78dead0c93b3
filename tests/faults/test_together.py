"""Runs beside each other and after each other: each of them is counted exactly."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from distkeras_grid.errors import WorkerFailedError
from tests.faults.counting import (
    EPOCHS,
    ROWS,
    at_epoch,
    counting_data,
    counting_trainer,
    failing,
)

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.tensorflow, pytest.mark.full]


@pytest.mark.promise(
    "a run: has failed, and another one follows in the same session",
    "The second is exact.",
)
def test_a_run_after_a_failed_one(spark, tmp_path):
    with pytest.raises(WorkerFailedError):
        counting_trainer("DOWNPOUR", tmp_path, loss=failing(tmp_path)).train(counting_data(spark))
    trainer = counting_trainer("DOWNPOUR", tmp_path)
    model = trainer.train(counting_data(spark), seed=1)
    assert trainer.history.samples == ROWS * EPOCHS
    np.testing.assert_array_equal(model.get_weights()[0], np.full((ROWS, 1), EPOCHS))


@pytest.mark.promise(
    "nothing; two runs at once on one driver",
    "Both are exact.",
)
@pytest.mark.promise(
    "nothing; two runs at once on one host, with the same `master_port`",
    "The second server takes the next port; both are exact.",
)
def test_two_runs_at_once_that_ask_for_one_port(spark, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    both = threading.Barrier(2)

    def train(name):
        (tmp_path / name).mkdir()
        terms = {"num_workers": 1, "master_port": port}
        trainer = counting_trainer("DOWNPOUR", tmp_path / name, **terms)
        # Neither has ended when the other one trains.
        met = at_epoch(1, lambda: both.wait(240.0))
        model = trainer.train(counting_data(spark), seed=1, callbacks=[met])
        return trainer.history.samples, model.get_weights()[0]

    with ThreadPoolExecutor(2) as pool:
        for samples, weights in pool.map(train, ("one", "other")):
            assert samples == ROWS * EPOCHS
            np.testing.assert_array_equal(weights, np.full((ROWS, 1), EPOCHS))
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()

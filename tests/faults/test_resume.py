"""Runs of which everything was killed, and which go on from their last checkpoint."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from distkeras_grid.errors import ServerUnreachableError
from tests.cluster import driver_environment
from tests.faults.counting import at_epoch, counting_data, kill, server_pid
from tests.faults.test_smoke import EPOCHS, ROWS, counting_trainer

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.tensorflow]

KILLS = 4


def test_a_run_whose_server_was_killed_goes_on_and_counts_each_row_once_an_epoch(spark, tmp_path):
    def trained(*callbacks):
        folder = str(tmp_path / "checkpoints")
        saving = {"checkpoint_dir": folder, "checkpoint_every": "epoch", "resume": "auto"}
        trainer = counting_trainer("DOWNPOUR", tmp_path, **saving)
        trainer.train(counting_data(spark, ROWS), seed=1, callbacks=callbacks)
        return trainer

    with pytest.raises(ServerUnreachableError):
        trained(at_epoch(EPOCHS // 2, lambda: kill(server_pid())))
    trainer = trained(at_epoch(EPOCHS + 1, lambda: None))
    np.testing.assert_array_equal(trainer.model.get_weights()[0], np.full((ROWS, 1), EPOCHS))
    assert trainer.history.samples == ROWS * EPOCHS
    assert trainer.history.epoch == list(range(EPOCHS))
    assert trainer.run["resumed"][0]["samples"] > 0


class Driver:
    """A driver in a process of its own."""

    def __init__(self, project, kind, folder, *more):
        self.folder = folder
        command = [sys.executable, "-m", "tests.faults.resume_job", kind, str(folder), *more]
        with (folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                command,
                cwd=project,
                env=driver_environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def newest(self):
        found = sorted((self.folder / "checkpoints").glob("checkpoint-*"))
        return found[-1].name if found else ""

    def ended(self):
        return self.process.poll() is not None


def kill_after_a_checkpoint(driver, seconds):
    """Kill the driver so long after it has written a checkpoint; return whether it was killed."""
    before, deadline = driver.newest(), time.monotonic() + 180
    while driver.newest() == before and not driver.ended():
        assert time.monotonic() < deadline, (driver.folder / "log").read_text()
        threading.Event().wait(0.02)
    threading.Event().wait(seconds)
    if not driver.ended():
        driver.process.send_signal(signal.SIGKILL)
    return driver.process.wait() == -signal.SIGKILL


@pytest.mark.full
@pytest.mark.parametrize("kind", ["net", "counting"])
def test_a_driver_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(
    project, tmp_path, kind
):
    moments, kills = random.Random(7), 0
    folder = tmp_path / "killed"
    folder.mkdir()
    for _ in range(KILLS):
        driver = Driver(project, kind, folder)
        kills += kill_after_a_checkpoint(driver, moments.uniform(0, 0.5))
    last = Driver(project, kind, folder)
    assert last.process.wait(180) == 0, (folder / "log").read_text()
    assert kills == KILLS
    weights = np.load(folder / "weights.npy")
    if kind == "counting":
        np.testing.assert_array_equal(weights, np.full(ROWS, EPOCHS))
        return
    whole = tmp_path / "whole"
    whole.mkdir()
    undisturbed = Driver(project, kind, whole, "--anew")
    assert undisturbed.process.wait(180) == 0, (whole / "log").read_text()
    np.testing.assert_array_equal(weights, np.load(whole / "weights.npy"))

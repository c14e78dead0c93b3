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

from tests.cluster import driver_environment
from tests.faults.counting import at_epoch, attempts, counting_data, kill, server_pid
from tests.faults.test_smoke import EPOCHS, ROWS, counting_trainer

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.tensorflow]

KILLS = 4


@pytest.mark.full
@pytest.mark.promise(
    "server: killed, with checkpoints",
    "The run begins again from its newest checkpoint, with new tasks; exact.",
)
def test_a_run_whose_server_was_killed_goes_on_and_counts_each_row_once_an_epoch(spark, tmp_path):
    saving = {"checkpoint_dir": str(tmp_path / "checkpoints"), "checkpoint_every": 0.5}
    trainer = counting_trainer("DOWNPOUR", tmp_path, **saving)
    killed = []

    def kill_once():
        # The run may begin again before this epoch.
        if not killed:
            killed.append(server_pid())
            kill(killed[0])

    killer = at_epoch(EPOCHS // 2, kill_once)
    model = trainer.train(counting_data(spark, ROWS), seed=1, callbacks=[killer])
    np.testing.assert_array_equal(model.get_weights()[0], np.full((ROWS, 1), EPOCHS))
    assert trainer.history.samples == ROWS * EPOCHS
    assert trainer.history.epoch == list(range(EPOCHS))
    assert [len(attempts(tmp_path, seat)) for seat in (0, 1)] == [2, 2]
    (told,) = trainer.run["resumed"]
    assert told["restarted"] == "server"
    assert told["repeated"] >= 0
    windows = [(r.worker, r.epoch, r.window) for r in trainer.history.records]
    assert len(windows) == len(set(windows))


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


def wait_until(condition, driver):
    deadline = time.monotonic() + 180
    while not condition():
        assert not driver.ended(), (driver.folder / "log").read_text()
        assert time.monotonic() < deadline, (driver.folder / "log").read_text()
        threading.Event().wait(0.02)


def weights_of(driver):
    assert driver.process.wait(180) == 0, (driver.folder / "log").read_text()
    return np.load(driver.folder / "weights.npy")


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
@pytest.mark.promise(
    "driver: killed, with checkpoints",
    '`resume="auto"` goes on; exact, and with one worker bit for bit.',
)
def test_a_driver_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(
    project, tmp_path, kind
):
    moments, kills = random.Random(7), 0
    folder = tmp_path / "killed"
    folder.mkdir()
    for _ in range(KILLS):
        driver = Driver(project, kind, folder)
        kills += kill_after_a_checkpoint(driver, moments.uniform(0, 0.5))
    weights = weights_of(Driver(project, kind, folder))
    assert kills == KILLS
    if kind == "counting":
        np.testing.assert_array_equal(weights, np.full(ROWS, EPOCHS))
        return
    np.testing.assert_array_equal(weights, undisturbed(project, tmp_path))


def undisturbed(project, tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    return weights_of(Driver(project, "net", whole, "--anew"))


@pytest.mark.full
@pytest.mark.promise(
    "driver: SIGTERM, with checkpoints",
    "A last checkpoint is written; with one worker the result is the same, bit for bit.",
)
def test_a_driver_that_is_terminated_writes_a_last_checkpoint(project, tmp_path):
    folder = tmp_path / "terminated"
    folder.mkdir()
    driver = Driver(project, "net", folder, "--rarely")
    wait_until((folder / "epoch").exists, driver)
    assert driver.newest() == ""
    driver.process.terminate()
    assert driver.process.wait(60) != 0
    assert not (folder / "weights.npy").exists()
    assert driver.newest() != ""
    weights = weights_of(Driver(project, "net", folder, "--rarely"))
    np.testing.assert_array_equal(weights, undisturbed(project, tmp_path))

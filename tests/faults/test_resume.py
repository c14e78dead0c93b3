"""Drivers that were killed, and whose runs go on from their last checkpoint."""

from __future__ import annotations

import random
import signal
import threading
from functools import partial

import numpy as np
import pytest

from tests.faults.counting import end, start_driver, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.tensorflow, pytest.mark.full]

KILLS, SECONDS = 4, 360.0


def newest(folder):
    checkpoints = sorted((folder / "checkpoints").glob("checkpoint-*"))
    return checkpoints[-1].name if checkpoints else ""


def has_gone_on(driver, folder, before):
    """Whether there is another checkpoint than before, or the driver has ended."""
    return newest(folder) != before or driver.poll() is not None


def weights_of(project, folder, *mode):
    end(start_driver(project, "resume_job", folder, *mode), seconds=SECONDS)
    return np.load(folder / "weights.npy")


@pytest.fixture(scope="module")
def undisturbed(project, tmp_path_factory):
    return weights_of(project, tmp_path_factory.mktemp("whole"), "--anew")


@pytest.mark.promise(
    "driver: killed, with checkpoints",
    '`resume="auto"` goes on; exact, and with one worker bit for bit.',
)
def test_a_driver_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(
    project, tmp_path, undisturbed
):
    moments = random.Random(7)
    for _ in range(KILLS):
        before = newest(tmp_path)
        driver = start_driver(project, "resume_job", tmp_path)
        wait_until(partial(has_gone_on, driver, tmp_path, before), SECONDS)
        threading.Event().wait(moments.uniform(0, 0.5))
        driver.kill()
        end(driver, code=-signal.SIGKILL)
    np.testing.assert_array_equal(weights_of(project, tmp_path), undisturbed)


@pytest.mark.promise(
    "driver: SIGTERM, with checkpoints",
    "A last checkpoint is written; with one worker the result is the same, bit for bit.",
)
def test_a_driver_that_is_terminated_writes_a_last_checkpoint(project, tmp_path, undisturbed):
    driver = start_driver(project, "resume_job", tmp_path, "--rarely")
    wait_until(lambda: (tmp_path / "epoch").exists() or driver.poll() is not None, SECONDS)
    assert newest(tmp_path) == ""
    driver.terminate()
    end(driver, seconds=60, code=driver.wait(60))
    assert driver.returncode != 0
    assert not (tmp_path / "weights.npy").exists()
    assert newest(tmp_path) != ""
    np.testing.assert_array_equal(weights_of(project, tmp_path, "--rarely"), undisturbed)

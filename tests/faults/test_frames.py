"""Server and driver are killed in the middle of any frame, and the run keeps what is promised.

Server and driver are processes; workers are threads that train a small model without Keras. Each
test draws a frame, and the share of it that still passes, from its seed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from distkeras_grid.trainers.checkpointing import Every
from tests.distkeras_grid.parameter_server.relay import Moment, Relay
from tests.distkeras_grid.trainers.test_checkpointed_run import (
    EPOCHS,
    SEAT_ROWS,
    Execution,
    windows_of,
)
from tests.faults.counting import lives

pytestmark = [pytest.mark.full, pytest.mark.faults]

#: A rule, its workers, and whether they wait for each other, so that a run can be repeated exactly.
KINDS = {"averaging": (2, True), "downpour": (3, False)}
SEEDS = range(10)
SHARES = (0.0, 0.5, 1.0)
WINDOWS = EPOCHS * SEAT_ROWS // 2
SECONDS = 60.0


@pytest.fixture(scope="module", params=KINDS)
def undisturbed(request, tmp_path_factory):
    """A rule, and a run of it that nothing happened to, with the number of its frames."""
    relays = []

    def through(server):
        relays.append(Relay(server.address))
        return relays[0]

    rule = request.param
    workers, _ = KINDS[rule]
    run = Execution(tmp_path_factory.mktemp(rule), workers, rule=rule, through=through)
    return rule, run, relays[0].frames


def drawn(seed, frames):
    """The frame of a seed, not one of the last, and the share of it that passes."""
    chosen = random.Random(seed)
    return chosen.randint(1, frames * 9 // 10), chosen.choice(SHARES)


def check(rule, whole, center, windows):
    """No window is lost or repeated; where workers wait for each other, no bit differs."""
    workers, exact = KINDS[rule]
    expected = windows_of(whole.history)
    assert len(expected) == len(set(expected)) == workers * WINDOWS
    assert [tuple(each) for each in windows] == expected
    if exact:
        np.testing.assert_array_equal(np.float32(center), whole.center)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.promise(
    "server: killed in the middle of a frame, with checkpoints",
    "Another one takes its place; no window is lost or repeated, in rounds bit for bit.",
)
def test_the_server_is_killed_in_the_middle_of_a_frame(undisturbed, tmp_path, seed):
    rule, whole, frames = undisturbed
    frame, share = drawn(seed, frames)

    def through(server):
        moment = Moment(frame, share, server._process.kill)
        return Relay(server.address, moment=moment)

    workers, _ = KINDS[rule]
    every = Every(seconds=0.05)
    run = Execution(tmp_path, workers, rule=rule, every=every, through=through)
    assert [each["restarted"] for each in run.history.params["resumed"]] == ["server"]
    check(rule, whole, run.center, windows_of(run.history))


def start(project, folder, rule, frame, share):
    command = [sys.executable, "-m", "tests.faults.frames_job", str(folder), rule]
    return subprocess.run(
        [*command, str(KINDS[rule][0]), str(frame), str(share)],
        cwd=project,
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.promise(
    "driver: killed in the middle of a frame, with checkpoints",
    "The server ends by itself; `resume='auto'` goes on; no window is lost or repeated, in rounds "
    "bit for bit.",
)
def test_the_driver_is_killed_in_the_middle_of_a_frame(undisturbed, project, tmp_path, seed):
    rule, whole, frames = undisturbed
    frame, share = drawn(seed, frames)
    killed = start(project, tmp_path, rule, frame, share)
    assert killed.returncode == -9, killed.stderr
    assert not (tmp_path / "result.json").exists()
    had = (tmp_path / "checkpoints").exists() and list(
        (tmp_path / "checkpoints").glob("checkpoint-*")
    )
    ended = start(project, tmp_path, rule, 0, 0)
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["resumed"] == bool(had)
    check(rule, whole, found["center"], found["windows"])
    server, deadline = int((tmp_path / "server").read_text()), time.monotonic() + SECONDS
    while lives(server):
        assert time.monotonic() < deadline, "the server of the killed driver goes on"
        time.sleep(0.1)

"""Server and driver are killed in the middle of any frame, and the run keeps what is promised.

Server and driver are processes; workers are threads that train a small model without Keras. Each
test draws a frame, and the share of it that still passes, from its seed. The seeds go through the
families, with and without deep gradient compression.
"""

from __future__ import annotations

import functools
import json
import random
import signal
from contextlib import nullcontext

import numpy as np
import pytest

from tests.distkeras_grid.parameter_server.relay import Moment, Relay
from tests.distkeras_grid.trainers.test_checkpointed_run import EPOCHS, surviving, windows_of
from tests.faults.counting import end, lives, start_driver, wait_until
from tests.faults.frames_job import execution
from tests.invariants.small_runs import SEAT_ROWS
from tests.invariants.test_fault_product import FAMILIES, whole_rounds

pytestmark = [pytest.mark.full, pytest.mark.faults]

#: Families of `FAMILIES` and kinds of training; seeds go through them.
CASES = (
    *(("averaging", "Adam"), ("delta", "Adam"), ("staleness", "Adam"), ("elastic", "Adam")),
    *(("server state", "BatchNorm"), ("synchronous", "Adam"), ("averaging with quorum", "Adam")),
    *(("delta", "DGC"), ("server state", "DGC"), ("synchronous", "DGC")),
)
SEEDS = range(2 * len(CASES))
SHARES = (0.0, 0.5, 1.0)
WINDOWS = EPOCHS * SEAT_ROWS // 2
SECONDS = 60.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return what runs a case that nothing happens to, and counts its frames."""

    @functools.cache
    def run_of(family, kind):
        relays = []

        def through(server):
            relays.append(Relay(server.address))
            return relays[0]

        run = execution(tmp_path_factory.mktemp("whole"), family, kind, through=through)
        return run, relays[0].frames

    return run_of


def drawn(seed, frames):
    """The frame of a seed, not one of the last, and the share of it that passes."""
    chosen = random.Random(seed)
    return chosen.randint(1, frames * 9 // 10), chosen.choice(SHARES)


def check(family, whole, center, windows):
    """No window is lost or repeated; where workers wait for each other, no bit differs.

    With a quorum, windows that are late are in no round, and may be others in each run.
    """
    found, workers = [tuple(each) for each in windows], FAMILIES[family][2]
    assert len(found) == len(set(found))
    assert np.isfinite(center).all()
    if "quorum" in family:
        return
    assert len(found) == workers * WINDOWS
    assert found == windows_of(whole.history)
    if whole_rounds(family):
        np.testing.assert_array_equal(np.float32(center), whole.center)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.promise(
    "server: killed in the middle of a frame, with checkpoints",
    "The run begins again from its newest checkpoint; no window is lost or repeated, in rounds bit "
    "for bit.",
)
def test_the_server_is_killed_in_the_middle_of_a_frame(undisturbed, tmp_path, seed):
    family, kind = CASES[seed % len(CASES)]
    whole, frames = undisturbed(family, kind)
    frame, share = drawn(seed, frames)

    killed = []

    def through(server):
        if killed:
            return nullcontext(server)
        killed.append(server)
        moment = Moment(frame, share, server._started.process.kill)
        return Relay(server.address, moment=moment)

    terms = {"every": 0.05, "through": through, "run": surviving}
    *first, run = execution(tmp_path, family, kind, **terms)
    assert len(first) == 1
    check(family, whole, run.center, windows_of(run.history))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.promise(
    "driver: killed, with checkpoints",
    '`resume="auto"` goes on; exact, and with one worker bit for bit.',
)
@pytest.mark.promise(
    "driver: killed in the middle of a frame, with checkpoints",
    "The server ends by itself; `resume='auto'` goes on; no window is lost or repeated, in rounds "
    "bit for bit.",
)
def test_the_driver_is_killed_in_the_middle_of_a_frame(undisturbed, project, tmp_path, seed):
    case = family, kind = CASES[seed % len(CASES)]
    whole, frames = undisturbed(family, kind)
    frame, share = drawn(seed, frames)
    killed = start_driver(project, "frames_job", tmp_path, *case, frame, share)
    end(killed, seconds=SECONDS, code=-signal.SIGKILL)
    assert not (tmp_path / "result.json").exists()
    had = list((tmp_path / "checkpoints").glob("checkpoint-*"))
    end(start_driver(project, "frames_job", tmp_path, *case, 0, 0), seconds=SECONDS)
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["resumed"] == bool(had)
    check(family, whole, found["center"], found["windows"])
    server = int((tmp_path / "server").read_text())
    wait_until(lambda: not lives(server), SECONDS)

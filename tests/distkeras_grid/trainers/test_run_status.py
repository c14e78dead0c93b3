from __future__ import annotations

from dataclasses import replace

import pytest

from distkeras_grid.progress import one_line
from distkeras_grid.trainers.run_status import TRAINING, RunStatus, run_progress

TRAINED = RunStatus(
    workers=4,
    epochs=5,
    total_samples=50_000,
    phase=TRAINING,
    epoch=2,
    samples=20_000,
    active=2,
    loss=0.123456,
    staleness=1.24,
)


def line(status: RunStatus, rate: float = 0.0, seconds: float = 0.0) -> str:
    return one_line(status.parts(rate, seconds))


def test_the_line_tells_all_that_is_known():
    assert line(TRAINED, rate=1000.0) == (
        "epoch 2/5  40%  0:30 left  1,000 samples/s  loss 0.1235  workers 2 of 4  staleness 1.2"
    )


def test_what_is_not_known_is_left_out():
    unknown = replace(TRAINED, loss=None, staleness=None, total_samples=0)
    assert line(unknown) == "epoch 2/5  workers 2 of 4"


def test_hours_are_told_as_hours():
    assert "  8:20:00 left  " in line(TRAINED, rate=1.0)


def test_a_hundred_percent_is_said_only_when_all_is_folded():
    assert "  99%  " in line(replace(TRAINED, samples=49_999))
    assert "  100%  " in line(replace(TRAINED, samples=50_000))


def test_before_training_the_line_tells_what_is_waited_for():
    waiting = RunStatus(workers=2, epochs=1, total_samples=10, phase="importing TensorFlow")
    assert line(waiting, seconds=3.4) == "importing TensorFlow  0 of 2 workers  3 s"


def test_before_the_workers_are_known_the_line_does_not_count_them():
    assert line(RunStatus(), seconds=3.4) == "checking the data  3 s"


def test_while_the_driver_is_busy_the_line_says_with_what_and_no_stale_rate():
    busy = replace(TRAINED, busy_with="evaluating epoch 1")
    assert line(busy, rate=1000.0).startswith("epoch 2/5  40%  evaluating epoch 1  loss 0.1235")


@pytest.mark.parametrize("change", [{"epoch": 2}, {"phase": TRAINING}])
def test_each_phase_and_each_epoch_is_told_at_once(change):
    lines: list[str] = []
    progress = run_progress(lines.append)
    progress.update(samples=1, active=1)
    assert lines == []
    progress.update(**change)
    assert len(lines) == 1


def test_a_run_that_goes_on_does_not_count_what_was_folded_before():
    now = [0.0]
    lines: list[str] = []
    progress = run_progress(lines.append, clock=lambda: now[0])
    progress.update(phase=TRAINING, samples=500)
    now[0] += 10
    progress.update(samples=600)
    progress.tick()
    assert "  10 samples/s  " in lines[-1]

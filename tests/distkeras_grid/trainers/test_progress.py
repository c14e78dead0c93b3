from __future__ import annotations

import io
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from distkeras_grid import status_line as module
from distkeras_grid.trainers.progress import TRAINING, Progress, ProgressLine, format_progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def screen(self):
        """What a person sees: each line after its last carriage return has written over it."""
        lines = []
        for text in self.getvalue().split("\n"):
            shown = ""
            for part in text.split("\r"):
                shown = part + shown[len(part) :]
            lines.append(shown.rstrip())
        return lines


TRAINED = Progress(
    workers=4,
    epochs=5,
    total_samples=50_000,
    phase=TRAINING,
    epoch=2,
    samples=20_000,
    active=2,
    loss=0.123456,
    staleness=1.24,
    rate=1000.0,
)


def test_the_line_tells_all_that_is_known():
    assert format_progress(TRAINED) == (
        "epoch 2/5  40%  0:30 left  1,000 samples/s  loss 0.1235  workers 2 of 4  staleness 1.2"
    )


def test_what_is_not_known_is_left_out():
    unknown = replace(TRAINED, loss=None, staleness=None, rate=0.0, total_samples=0)
    assert format_progress(unknown) == "epoch 2/5  workers 2 of 4"


def test_hours_are_told_as_hours():
    assert "  8:20:00 left  " in format_progress(replace(TRAINED, rate=1.0))


@pytest.mark.parametrize("width", range(5, 120, 5))
def test_the_line_never_exceeds_the_width(width):
    line = format_progress(TRAINED, width)
    assert len(line) <= width
    assert format_progress(TRAINED).startswith(line)


def test_a_hundred_percent_is_said_only_when_all_is_folded():
    assert "  99%  " in format_progress(replace(TRAINED, samples=49_999))
    assert "  100%  " in format_progress(replace(TRAINED, samples=50_000))


def test_before_training_the_line_tells_what_is_waited_for():
    waiting = Progress(workers=2, epochs=1, total_samples=10, phase="importing TensorFlow")
    assert (
        format_progress(replace(waiting, seconds=3.4))
        == "importing TensorFlow  0 of 2 workers  3 s"
    )


def test_before_the_workers_are_known_the_line_does_not_count_them():
    assert format_progress(Progress(phase="checking the data", seconds=3.4)) == (
        "checking the data  3 s"
    )


def test_while_the_driver_is_busy_the_line_says_with_what_and_no_stale_rate():
    busy = replace(TRAINED, busy_with="evaluating epoch 1")
    assert format_progress(busy).startswith("epoch 2/5  40%  evaluating epoch 1  loss 0.1235")


@pytest.fixture
def clock():
    return Clock()


def make(stream, clock):
    line = ProgressLine(stream=stream, clock=clock)
    line.expect(total_samples=1000, epochs=2, workers=2)
    return line


def test_plain_lines_come_at_intervals_and_at_each_new_phase_and_epoch(clock):
    stream = io.StringIO()
    line = make(stream, clock)
    for samples in range(0, 1000, 10):  # 100 updates, 8 a second
        line.update(phase=TRAINING, samples=samples, epoch=1 + samples // 500)
        clock.now += 0.125
    shown = stream.getvalue().splitlines()
    assert [text.split("  ")[:2] for text in shown] == [
        ["epoch 1/2", "0%"],
        ["epoch 1/2", "32%"],
        ["epoch 2/2", "50%"],
        ["epoch 2/2", "82%"],
    ]


def test_a_terminal_sees_one_line_that_moves(clock):
    stream = Terminal()
    line = make(stream, clock)
    line.update(phase="a phase with a very long name, longer than what comes after it")
    clock.now += 1
    line.update(phase=TRAINING, samples=100)
    clock.now += 1
    line.update(samples=300, active=2)
    assert "\n" not in stream.getvalue()
    assert stream.screen() == ["epoch 1/2  30%  0:04 left  200 samples/s  workers 2 of 2"]


def test_a_terminal_is_not_written_to_at_every_update(clock):
    stream = Terminal()
    line = make(stream, clock)
    for _ in range(1000):
        line.update(phase=TRAINING, samples=1)
    assert stream.getvalue().count("\r") == 1


def test_a_narrow_terminal_never_wraps(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(len("epoch 1/2  0%")))
    stream = Terminal()
    make(stream, clock).update(phase=TRAINING, active=2, loss=0.5)
    # A line as wide as the terminal would already wrap.
    assert stream.screen() == ["epoch 1/2"]


def test_samples_per_second_forget_the_start(clock):
    stream = io.StringIO()
    line = make(stream, clock)
    line.update(phase=TRAINING, samples=0)
    clock.now += 100
    line.update(samples=10)
    for _ in range(10):
        clock.now += 2
        line.update(samples=10)
        clock.now += 2
        line.update(samples=10)
    for second in range(1, 31):
        clock.now += 1
        line.update(samples=10 + 20 * second)
    assert "  20 samples/s  " in stream.getvalue().splitlines()[-1]


def test_a_run_that_goes_on_does_not_count_what_was_folded_before(clock):
    stream = io.StringIO()
    line = make(stream, clock)
    line.update(phase=TRAINING, samples=500)
    clock.now += 10
    line.update(samples=600)
    assert "  10 samples/s  " in stream.getvalue()


def test_a_note_stays_above_the_moving_line(clock):
    stream = Terminal()
    line = make(stream, clock)
    line.update(phase="counting rows")
    line.note("2 workers")
    assert stream.screen() == [
        "2 workers",
        "counting rows  0 of 2 workers  0 s",
    ]


def test_a_note_among_plain_lines_is_a_plain_line(clock):
    stream = io.StringIO()
    make(stream, clock).note("2 workers")
    assert stream.getvalue() == "2 workers\n"


def test_the_heartbeat_breaks_the_silence_of_a_busy_driver(monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 0.01)
    monkeypatch.setattr(module, "PLAIN_INTERVAL", 0.01)
    beaten = threading.Event()

    class Stream(io.StringIO):
        def write(self, text):
            if threading.current_thread().name == "progress":
                beaten.set()
            return super().write(text)

    with ProgressLine(stream=Stream()):
        assert beaten.wait(10)
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_leaving_shows_the_last_state_and_ends_the_line():
    stream = Terminal()
    with ProgressLine(stream=stream) as line:
        line.expect(total_samples=10, epochs=1, workers=1)
        line.update(phase=TRAINING, samples=1, active=1)
        line.update(samples=10)
    assert stream.screen()[0].startswith("epoch 1/1  100%")
    assert stream.getvalue().endswith("\n")


@pytest.mark.parametrize(
    ("shell", "moving"), [(SimpleNamespace(kernel=object()), True), (SimpleNamespace(), False)]
)
def test_a_notebook_gets_a_moving_line_on_standard_output(monkeypatch, capsys, shell, moving):
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    ProgressLine().update(phase=TRAINING)
    out, err = capsys.readouterr()
    assert out.startswith("\r") if moving else err.endswith("\n")
    assert not (err if moving else out)

from __future__ import annotations

import io
import time

import pytest

from distkeras_grid.webhdfs.transfer_line import Meter, Transfer, TransferLine, format_transfer

RUNNING = Transfer("sending", 3, 10, 500_000, 2_000_000, rate=100_000.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (120, "sending  3 of 10 files  500 kB of 2.0 MB  100 kB/s  0:15 left"),
        (50, "sending  3 of 10 files  500 kB of 2.0 MB  100 kB/s"),
        (22, "sending  3 of 10 files"),
        (4, "send"),
    ],
)
def test_parts_that_do_not_fit_are_left_out(width: int, line: str) -> None:
    assert format_transfer(RUNNING, width) == line


def test_failures_stand_in_front_and_an_unknown_rate_is_not_told() -> None:
    failed = Transfer("sending", 3, 10, 500_000, 2_000_000, failed=2)
    assert format_transfer(failed) == "sending  2 failed  3 of 10 files  500 kB of 2.0 MB"
    assert format_transfer(Transfer("looking", files=1234, seconds=3)) == (
        "looking  1,234 files  3 s"
    )


def test_the_rate_is_that_of_late_and_a_failed_try_is_taken_back() -> None:
    now = [100.0]
    line = TransferLine("looking", stream=(written := io.StringIO()), clock=lambda: now[0])
    line.begin("sending", files=2, size=100_000_000)
    meter = Meter(line)
    meter.add(30_000_000)
    now[0] += 4
    line.tick()
    meter.reset()
    meter.add(10_000_000)
    line.end_file()
    now[0] += 4
    line.tick()
    line.end_file(failed=True)
    now[0] += 100
    line.tick()
    now[0] += 20
    line.move(40_000_000)
    line.tick()
    assert [told.split("  ", 1)[1] for told in written.getvalue().splitlines()] == [
        "0 of 2 files  30 MB of 100 MB  7.5 MB/s  0:09 left",
        "1 of 2 files  10 MB of 100 MB  1.2 MB/s  1:12 left",
        "1 failed  1 of 2 files  10 MB of 100 MB",
        "1 failed  1 of 2 files  50 MB of 100 MB  2.0 MB/s  0:25 left",
    ]
    assert line.state.seconds == 128


def test_a_terminal_shows_one_line_that_moves_and_notes_that_stay() -> None:
    stream = Terminal()
    with TransferLine("looking", stream=stream) as line:
        deadline = time.monotonic() + 10
        while "looking" not in stream.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        line.note("a.tif failed")
        line.begin("sending", files=1, size=1)
        while "sending" not in stream.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    told = stream.getvalue()
    assert "\ra.tif failed\n" in told
    assert told.count("\n") == 2
    assert told.rsplit("\r", 1)[1].strip() == "sending  0 of 1 files  0 bytes of 1 bytes"


def test_a_long_transfer_ends_with_its_last_state_also_where_lines_do_not_move() -> None:
    now = [0.0]
    stream = io.StringIO()
    with TransferLine("looking", stream=stream, clock=lambda: now[0]) as line:
        line.begin("sending", files=1, size=1)
        now[0] += 4
        line.tick()
        line.end_file()
    assert stream.getvalue().splitlines() == [
        "sending  0 of 1 files  0 bytes of 1 bytes",
        "sending  1 of 1 files  0 bytes of 1 bytes",
    ]


def test_a_short_transfer_is_silent_where_lines_do_not_move() -> None:
    stream = io.StringIO()
    with TransferLine("looking", stream=stream) as line:
        line.begin("sending", files=1, size=1)
    assert stream.getvalue() == ""

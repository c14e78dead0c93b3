from __future__ import annotations

import pytest

from distkeras_grid.progress import Reporter
from distkeras_grid.webhdfs.transfer_status import Meter, TransferStatus, transfer_progress

RUNNING = TransferStatus("sending", 3, 10, 500_000, 2_000_000)


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
    assert RUNNING.status(100_000.0, 5.0).line(width) == line


def test_failures_stand_in_front_and_an_unknown_rate_is_not_told() -> None:
    failed = TransferStatus("sending", 3, 10, 500_000, 2_000_000, failed=2)
    assert failed.status(0.0, 5.0).line() == ("sending  2 failed  3 of 10 files  500 kB of 2.0 MB")
    assert (
        TransferStatus("looking", files=1234).status(0.0, 3.0).line() == "looking  1,234 files  3 s"
    )


def test_the_rate_is_that_of_late_and_a_failed_try_is_taken_back() -> None:
    now = [100.0]
    told: list[str] = []
    progress = Reporter(
        TransferStatus("looking"), to=told.append, clock=lambda: now[0], at_once=False
    )
    progress.begin(TransferStatus("sending", total_files=2, total_size=100_000_000))
    meter = Meter(progress)
    meter.add(30_000_000)
    now[0] += 4
    progress.tick()
    meter.reset()
    meter.add(10_000_000)
    progress.add(files=1)
    now[0] += 4
    progress.tick()
    progress.add(failed=1)
    now[0] += 100
    progress.tick()
    now[0] += 20
    progress.add(size=40_000_000)
    progress.tick()
    assert [line.split("  ", 1)[1] for line in told] == [
        "0 of 2 files  30 MB of 100 MB  7.5 MB/s  0:09 left",
        "1 of 2 files  10 MB of 100 MB  1.2 MB/s  1:12 left",
        "1 failed  1 of 2 files  10 MB of 100 MB",
        "1 failed  1 of 2 files  50 MB of 100 MB  2.0 MB/s  0:25 left",
    ]
    assert progress.seconds == 128


def test_a_short_transfer_is_silent_on_plain_lines() -> None:
    told: list[str] = []
    with transfer_progress("looking", told.append) as progress:
        progress.begin(TransferStatus("sending", total_files=1, total_size=1))
        progress.add(files=1, size=1)
    assert told == []

"""Reports that nobody waits for, and the lines of them that are kept."""

from __future__ import annotations

import threading

import msgspec
import pytest

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.model_parallel.messages import Report
from distkeras_grid.model_parallel.reports import (
    FIRST_LINES,
    NEWEST_LINES,
    DeviceLines,
    Recorder,
    Reports,
)

MANY = FIRST_LINES + 3 * NEWEST_LINES


def numbered(count):
    return [f"line {number}" for number in range(count)]


class Driver:
    """Takes reports once it is free."""

    def __init__(self, *, busy=False):
        self.free, self.asked = threading.Event(), threading.Event()
        self.found = []
        if not busy:
            self.free.set()

    def send(self, lines, shares, passes):
        self.asked.set()
        assert self.free.wait(20)
        self.found.append((list(lines), shares, passes))


def test_nobody_waits_for_a_driver_that_is_busy():
    driver = Driver(busy=True)
    with Reports(driver.send) as reports:
        reports.add(["a"], {"c": (2, 1)})
        assert driver.asked.wait(20)
        # These return although the first report is still on its way.
        reports.add(["b"], {"c": (1, 2)})
        reports.add(["c"])
        assert driver.found == []
        driver.free.set()
    assert driver.found == [(["a"], {"c": (2, 1)}, ()), (["b", "c"], {"c": (1, 2)}, ())]


def test_after_the_end_a_report_is_sent_at_once():
    driver = Driver()
    with Reports(driver.send) as reports:
        pass
    reports.add(["late"])
    assert [lines for lines, *_ in driver.found] == [["late"]]


def test_an_error_of_a_report_ends_no_batch_and_is_raised_at_the_end():
    def refuses(*_):
        raise RemoteProtocolError("no report is due")

    with pytest.raises(RemoteProtocolError), Reports(refuses) as reports:
        reports.add(["a"])
    with pytest.raises(KeyError), Reports(refuses) as reports:
        _ = {}[reports.add(["a"])]


def test_what_waits_for_a_driver_is_bounded_and_fits_a_report():
    driver = Driver(busy=True)
    with Reports(driver.send) as reports:
        reports.add(["x" * 5000])
        assert driver.asked.wait(20)
        for line in numbered(MANY):
            reports.add([line])
        driver.free.set()
    assert len(driver.found) == 2
    for lines, *_ in driver.found:
        report = Report(lines=tuple(lines))
        assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


@pytest.mark.parametrize("count", [0, 1, FIRST_LINES, FIRST_LINES + NEWEST_LINES])
def test_lines_are_kept(count):
    lines = DeviceLines()
    for line in numbered(count):
        lines.add([line])
    assert lines.text == numbered(count)


def test_of_many_lines_the_first_and_the_newest_are_kept():
    lines = DeviceLines(numbered(MANY))
    first, newest = numbered(MANY)[:FIRST_LINES], numbered(MANY)[-NEWEST_LINES:]
    kept = lines.text
    assert (kept[:FIRST_LINES], kept[FIRST_LINES + 1 :]) == (first, newest)
    assert str(2 * NEWEST_LINES) in kept[FIRST_LINES]


def test_a_run_keeps_the_newest_shares_and_its_lines_do_not_grow_without_end():
    noted, records = [], ({"devices": ["the table"]}, {})
    told = Recorder(records, noted.append)
    for number, line in enumerate(numbered(MANY)):
        told(Report(lines=(line,), shares={"c": (number, 1)}))
    told(Report(lines=()))
    assert noted == numbered(MANY)
    for record in records:
        assert len(record["devices"]) == FIRST_LINES + 1 + NEWEST_LINES
        assert record["devices"][-1] == noted[-1]
        assert record["shares"] == {"c": [MANY - 1, 1]}
    assert records[0]["devices"][0] == "the table"


def test_a_run_whose_last_divided_layer_becomes_whole_keeps_no_former_shares():
    """The history told that a lost device computed most of a layer."""
    record = {}
    told = Recorder([record], lambda _: None)
    told(Report(lines=(), shares={"c": (4, 6)}))
    told(Report(lines=("Device 1 is lost.",), shares={}))
    assert "shares" not in record


@pytest.mark.parametrize("shares", [None, {}, {"c": (4, 6)}])
def test_no_shares_are_told_from_none_that_are_said(shares):
    sent = []
    with Reports(lambda *found: sent.append(found)) as reports:
        reports.add(["line"], shares)
    assert [found[1] for found in sent] == [shares]

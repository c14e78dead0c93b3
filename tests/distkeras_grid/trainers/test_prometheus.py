"""Figures of a run, read over HTTP."""

from __future__ import annotations

import math
import os
import socket
from urllib.request import urlopen

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.parameter_server.messages import CenterUpdate, SeatStatus
from distkeras_grid.records import LateRecord, SkippedRecord, WindowRecord, WorkerRecord
from distkeras_grid.trainers.prometheus import PrometheusExporter, memory_of


def window(worker, staleness):
    return WindowRecord(worker, 0, 1, 0, 2, 64, 0.5, {}, 1.0, 0.5, staleness, 400, 300, 2.0, 1)


def read(figures):
    with urlopen(f"http://127.0.0.1:{figures.port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return {
        name.removeprefix("distkeras_grid_"): float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }


def test_what_happens_is_told():
    with PrometheusExporter(0, memory_of(lambda: [os.getpid()])) as figures:
        assert read(figures)["samples_per_second"] == 0
        for event in (window(0, 0), window(1, 3), window(1, 9)):
            figures.take(event)
        figures.take(LateRecord(1, 0, 1, 0, 64, 1, 3, 2.0))
        figures.take(SkippedRecord(1, 0, "", 1, 0, 64, math.nan, None, "NaN", 3, 2.0))
        figures.take(WorkerRecord(1, 0, "joined"))
        seats = (SeatStatus(0, 0, "running", 9, 9), SeatStatus(1, 0, "lost", 9, 9))
        figures.see(CenterUpdate(3, 192, seats, ()))
        told = read(figures)
    assert told['samples_total{worker="1"}'] == 128
    outcomes = ("folded", "late", "skipped")
    assert [told[f'commits_total{{outcome="{o}"}}'] for o in outcomes] == [3, 1, 1]
    assert (told['bytes_total{direction="up"}'], told['bytes_total{direction="down"}']) == (
        *(1200, 900),
    )
    assert [told[f'staleness_bucket{{le="{end}"}}'] for end in ("0.0", "4.0", "+Inf")] == [1, 2, 3]
    assert [told[f'workers{{status="{s}"}}'] for s in ("running", "lost", "ready")] == [1, 1, 0]
    assert (told["version"], told["loss"]) == (3, 0.5)
    assert told["server_memory_bytes"] > 1e6


def test_only_this_host_can_read_them_and_only_during_the_run():
    with PrometheusExporter(0, lambda: math.nan) as figures:
        assert math.isnan(read(figures)["server_memory_bytes"])
        found = socket.getaddrinfo(socket.gethostname(), figures.port, type=socket.SOCK_STREAM)
        others = {place[4] for place in found if not place[4][0].startswith("127.")}
        for place in others:
            with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
                socket.create_connection(place[:2], timeout=2)
    with pytest.raises(OSError, match="refused"):
        read(figures)


def test_a_port_in_use_is_refused():
    with (
        PrometheusExporter(0, lambda: 0.0) as figures,
        pytest.raises(ConfigurationError, match="free port"),
    ):
        PrometheusExporter(figures.port, lambda: 0.0).__enter__()


def test_the_memory_of_a_process_that_has_ended_is_not_known():
    assert math.isnan(memory_of(lambda: [2**22 + 1])())

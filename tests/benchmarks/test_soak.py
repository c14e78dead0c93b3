"""When a soak fails: on what it measured, without a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distkeras_grid.history import History
from distkeras_grid.records import WindowRecord
from tests.benchmarks.soak import Sample, faults, history_bytes

IDLE = Sample(0.0, 50.0, 100.0, 4, 6, 0, 0.0, 0)


def samples(server=0.0, driver=0.0, history=0.0, last=None):
    """Return those of ten minutes, which grow by so many MB a minute."""
    found = [
        replace(
            IDLE,
            seconds=60.0 * minute,
            server_mb=90 + server * minute,
            driver_mb=120 + driver * minute,
            history_mb=history * minute,
            threads=70,
            descriptors=80,
        )
        for minute in range(1, 11)
    ]
    return [IDLE, *found, replace(found[-1], **{"threads": 4, "descriptors": 6, **(last or {})})]


def test_what_does_not_grow_and_leaves_nothing_is_well():
    assert faults(samples(server=0.9, driver=3.0, history=2.5), limit=1.0) == []


@pytest.mark.parametrize(
    ("grown", "named"),
    [
        ({"server": 1.2}, "server_mb"),
        ({"driver": 3.0, "history": 1.5}, "driver_rest_mb"),
        ({"last": {"threads": 5}}, "threads"),
        ({"last": {"descriptors": 7}}, "descriptors"),
    ],
)
def test_each_fault_is_found(grown, named):
    (fault,) = faults(samples(**grown), limit=1.0)
    assert named in fault


def test_a_history_takes_as_many_bytes_more_for_each_window():
    record = WindowRecord(
        **{field: 0 for field in ("worker", "attempt", "window", "staleness", "version")},
        **{"epoch": 1, "steps": 1, "samples": 1, "bytes_up": 1, "bytes_down": 1},
        **{"loss": 0.5, "metrics": {"accuracy": 0.5}},
        **{"started": 0.0, "seconds": 1.0, "folded_at": 1.0},
    )
    sizes = []
    history = History()
    for _ in range(3):
        history.add(record)
        sizes.append(history_bytes(history))
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] == sizes[0] > 0

"""Section 0.2: how stale commits are, exactly."""

import numpy as np
import pytest

from distkeras_grid.rules import DownpourRule
from tests.invariants.quadratics import build, fixed

SPEEDS = {
    "equal": {},
    "unequal": {"speeds": [1.0, 0.9, 0.8, 0.7, 0.5, 0.3, 0.2, 0.1]},
    "exponential": {"times": "exponential", "seed": 3},
    "unequal and exponential": {"times": "exponential", "speeds": [1, 1, 1, 1, 2, 2, 2, 0.1]},
    "stragglers on a slow network": {
        "times": "exponential",
        "straggler_probability": 0.1,
        "latency": 0.3,
        "bandwidth": 16.0,
        "server_bandwidth": 40.0,
    },
}


@pytest.mark.parametrize("speeds", SPEEDS.values(), ids=SPEEDS.keys())
@pytest.mark.full
def test_Y3_0_2_staleness_adds_up_to_the_commits_of_the_others(speeds):
    """Staleness of all commits, with what each worker has missed since: ``(n - 1)`` a commit.

    This holds at any moment and at any speeds.
    """
    workers = 8
    simulation = build(DownpourRule(), [fixed([0.0], 30)] * workers, **speeds)
    records = simulation.history.records
    last = [0] * workers
    while simulation.advance():
        for record in records[-1:]:
            last[record.worker] = record.version
        stale = sum(record.staleness for record in records)
        missed = sum(simulation.version - version for version in last)
        assert stale + missed == (workers - 1) * len(records)
    assert len(records) == 30 * workers


def test_0_2_the_slow_are_staler_than_the_fast():
    speeds = np.linspace(1.0, 0.1, 8)
    simulation = build(
        DownpourRule(), [fixed([0.0], round(150 * speed)) for speed in speeds], speeds=list(speeds)
    )
    simulation.run()
    means = [
        np.mean([record.staleness for record in simulation.history.select(worker=worker)])
        for worker in range(8)
    ]
    assert (np.diff(means) > 0).all()
    assert means[0] < 5
    assert means[-1] > 25

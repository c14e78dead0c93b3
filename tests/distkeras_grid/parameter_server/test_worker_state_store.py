import numpy as np
import pytest

from distkeras_grid.parameter_server.worker_state_store import (
    SHARE,
    WorkerStateSnapshot,
    WorkerStateStore,
)


def kept(sequence, version=0, content=0):
    return WorkerStateSnapshot(sequence, version, np.full(8, content, np.uint8))


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("took", [0.01, 3.0])
def test_it_costs_a_small_share_of_the_time_of_all_workers(workers, took):
    keeping, now, answers = WorkerStateStore(workers), 0.0, 0
    end = 200 * took * workers / SHARE
    while now < end:
        if keeping.asks(0, now):
            now += took
            keeping.receive(0, kept(answers), now)
            answers += 1
        else:
            now += took / 3
    assert answers == pytest.approx(SHARE * end / took / workers, rel=0.05)

import numpy as np
import pytest

from distkeras_grid.parameter_server.worker_state_store import (
    SHARE,
    WorkerStateSnapshot,
    WorkerStateStore,
)


def kept(sequence, version=0, content=0):
    return WorkerStateSnapshot(sequence, version, np.full(8, content, np.uint8))


def test_a_seat_is_asked_until_it_answers():
    keeping = WorkerStateStore(2)
    assert keeping.asks(0, now=5.0)
    assert keeping.asks(0, now=6.0)
    keeping.receive(0, kept(2), now=7.0)
    assert not keeping.asks(0, now=7.5)
    assert keeping.of(0).sequence == 2
    assert keeping.of(1) is None


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


def test_a_lost_worker_is_not_waited_for_and_its_state_stays():
    keeping = WorkerStateStore(1)
    keeping.asks(0, now=1.0)
    keeping.receive(0, kept(1), now=1.0)
    keeping.asks(0, now=1.0)
    keeping.lose(0)
    assert not keeping.awaits(0, sequence=2)
    assert keeping.of(0).sequence == 1
    keeping.leave(0)
    assert keeping.of(0) is None
    assert keeping.all == {}


def test_a_seat_that_is_wanted_is_asked_before_its_time():
    keeping = WorkerStateStore(1)
    keeping.asks(0, now=1.0)
    keeping.receive(0, kept(1), now=2.0)
    assert not keeping.asks(0, now=2.5)
    assert keeping.asks(0, now=2.5, wanted=True)


def test_a_worker_that_has_finished_is_not_waited_for():
    keeping = WorkerStateStore(1)
    keeping.asks(0, now=1.0)
    keeping.leave(0)
    assert not keeping.awaits(0, sequence=1)

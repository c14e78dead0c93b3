"""When a lost worker is told of, and with which reason."""

from __future__ import annotations

import pytest

from distkeras_grid.records import WorkerRecord
from distkeras_grid.trainers.losses import REASON_SECONDS, Losses

LOST = WorkerRecord(1, 7, "lost", at=3.0)


@pytest.fixture
def told():
    return []


@pytest.fixture
def losses(told):
    return Losses(lambda record, explained: told.append((record, explained.message)))


def unknown(worker, task):
    return ""


def test_a_reason_is_waited_for_but_not_for_ever(losses, told):
    losses.take(LOST, 100.0)
    losses.look(unknown, 100.0 + REASON_SECONDS)
    assert not told
    losses.look(unknown, 100.1 + REASON_SECONDS)
    assert told == [(LOST, "")]
    losses.look(unknown, 999.0)
    assert len(told) == 1


@pytest.mark.parametrize(("status", "task", "lines"), [("resumed", 7, 0), ("joined", 8, 1)])
def test_a_connection_that_was_broken_for_a_while_is_no_loss(losses, told, status, task, lines):
    losses.take(LOST, 0.0)
    losses.take(WorkerRecord(1, task, status), 1.0)
    losses.look(lambda worker, task: f"{worker} {task}", 2.0)
    assert told == [(LOST, "1 7")] * lines


def test_a_worker_that_is_lost_again_before_its_reason_is_known_is_told_of_twice(losses, told):
    again = WorkerRecord(1, 8, "lost")
    for record in (LOST, again):
        losses.take(record, 0.0)
    assert losses.explain(1, "no memory")
    assert told == [(LOST, ""), (again, "no memory")]
    assert not losses.explain(1, "no memory")

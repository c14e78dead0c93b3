"""What the driver has not seen yet, however its questions and the answers are lost."""

from __future__ import annotations

from distkeras_grid.parameter_server.events import EventLog
from distkeras_grid.records import EpochEnded, WorkerRecord


def filled(count):
    log = EventLog()
    for worker in range(count):
        log.add(WorkerRecord(worker, 0, "joined"))
    return log


def workers(events):
    return [event.worker for event in events]


def test_what_was_seen_is_forgotten_and_what_was_not_is_told_again():
    log = filled(5)
    assert workers(log.after(0, 10)) == [0, 1, 2, 3, 4]
    assert workers(log.after(2, 10)) == [2, 3, 4]
    # The answer was lost, and an older question comes late.
    assert workers(log.after(2, 10)) == workers(log.after(1, 10)) == [2, 3, 4]
    assert workers(log.after(3, 10)) == [3, 4]
    assert (log.forgotten, len(log.events)) == (3, 2)


def test_who_claims_to_have_seen_what_has_not_happened_misses_nothing():
    log = filled(2)
    assert log.after(99, 10) == []
    assert log.forgotten == 2
    log.add(WorkerRecord(7, 0, "joined"))
    assert workers(log.after(2, 10)) == [7]
    assert log.after(3, 10) == []


def test_events_come_in_answers_of_bounded_length():
    log = filled(5)
    assert workers(log.after(0, 2)) == [0, 1]
    assert workers(log.after(2, 2)) == [2, 3]
    assert workers(log.after(4, 2)) == [4]


def test_nothing_is_told_from_the_end_of_an_epoch_on_that_is_still_awaited():
    log = EventLog()
    for epoch in (1, 2, 3):
        log.add(WorkerRecord(epoch, 0, "joined"))
        log.add(EpochEnded(epoch, epoch, epoch, 0.0))
    assert len(log.after(0, 10)) == 6
    assert len(log.after(0, 10, before_epoch=2)) == 3
    assert len(log.after(0, 10, before_epoch=1.5)) == 3
    assert len(log.after(2, 2, before_epoch=3)) == 2

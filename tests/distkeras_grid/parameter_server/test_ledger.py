"""The server's bookkeeping, without arithmetic, sockets or threads."""

import math

import msgspec
import numpy as np
import pytest
from msgspec import convert, structs

from distkeras_grid.errors import RefusedError
from distkeras_grid.feeding.batches import policy_of
from distkeras_grid.parameter_server.checkpoint_state import SavedLedger
from distkeras_grid.parameter_server.ledger import Ledger
from distkeras_grid.parameter_server.messages import Heartbeat, WindowCommit
from distkeras_grid.parameter_server.server_events import ReceivedMessage
from distkeras_grid.records import (
    EpochEnded,
    LocalRecord,
    LocalSet,
    WorkerRecord,
)
from distkeras_grid.spec import LocalSpec, PreviousProgress
from tests.specs import make_spec

#: Tiles of a local training set and of a local test set, where workers draw them.
LOCAL = LocalSpec(local_train=50, local_test=3)


def make(seats=1, rows=100, epochs=3, rule="downpour", snapshots_per_epoch=0, quorum=1.0, **terms):
    return Ledger(
        make_spec(
            rule=rule,
            seats=seats,
            trainable_size=4,
            rows=rows,
            epochs=epochs,
            snapshots_per_epoch=snapshots_per_epoch,
            quorum=quorum,
            **terms,
        )
    )


def local_set(**changes):
    told = {"train": 50, "test": 3, "digest": "0123456789abcdef", "read_seconds": 0.5}
    return LocalSet(**{**told, **changes})


def arrive(session, sequence, samples=1, steps=1, loss=0.5, version=0, **changes):
    commit = WindowCommit(sequence, version, 1, sequence, steps, samples, loss, {}, 0.0, 0.0)
    return ReceivedMessage(session, structs.replace(commit, **changes), bytes_up=100)


def begin(state, rows):
    """Let every seat start with its rows; returns their sessions."""
    sessions = [state.members.join(number, 0) for number in range(len(rows))]
    for session, count in zip(sessions, rows, strict=True):
        state.members.ready(session, count)
    for session in sessions:
        state.start(session)
    return sessions


def fold_all(state, commits, reply_bytes=0):
    infos = [state.info(commit) for commit in commits]
    state.version += 1
    pairs = zip(commits, infos, strict=True)
    replies = [state.count_folded(commit, info, reply_bytes) for commit, info in pairs]
    return replies, state.end_epochs()


def fold(state, arrival):
    assert state.is_new(arrival)
    replies, snapshots = fold_all(state, [arrival])
    return replies[0], list(snapshots)


def kinds(state, kind):
    return [event for event in state.events.after(0, 10**6) if isinstance(event, kind)]


def test_what_a_commit_tells_of_its_local_set_is_an_event_folded_or_late():
    state = make(seats=2, rule="averaging", quorum=0.5, local=LOCAL)
    told = local_set(metrics={"loss": 2.0})
    arrivals = [arrive(session, 0, local=told) for session in begin(state, [50, 50])]
    fold(state, arrivals[0])
    assert state.is_late(arrivals[1])
    state.drop(arrivals[1])
    assert kinds(state, LocalRecord) == [
        LocalRecord(0, 0, 1, True, told),
        LocalRecord(1, 0, 1, False, told),
    ]


def test_what_happened_to_a_worker_is_told_with_time_place_and_the_number_of_its_tries():
    state = make(seats=1)
    sessions = []
    for now, task in ((5.0, 7), (9.0, 35)):
        state.members.now = now
        sessions.append(state.members.join(0, task))
        state.members.heartbeat(
            sessions[-1], Heartbeat("reading", 1, f"node-{task}", "/logs/stderr")
        )
        state.members.join(0, task)  # another connection of the same attempt
        state.members.lose(state.members.join(0, task))
    lost = [event for event in state.events.events if event.status == "lost"]
    assert lost == [
        WorkerRecord(0, task, "lost", at=at, host=f"node-{task}", log="/logs/stderr", tries=tries)
        for at, task, tries in ((5.0, 7, 1), (9.0, 35, 2))
    ]
    assert state.update(0).seats[0].tries == 2
    # Also in another execution of the run.
    saved = msgspec.convert(state.to_saved(), SavedLedger)
    again = Ledger.from_saved(make_spec(trainable_size=4, rows=100, epochs=3), saved)
    again.members.join(0, 3)
    assert again.update(0).seats[0].tries == 3


def test_a_run_that_the_driver_stops_holds_nobody_at_its_start():
    state = make(seats=2, largest_share=60)
    first = state.members.join(0, 0)
    state.members.ready(first, 60)
    assert not state.may_start(first)
    state.command(stop=True, learning_rate=None)
    assert state.may_start(first)
    assert state.start(first).stop


def test_a_seat_without_rows_holds_nobody_up():
    state = make(seats=2, largest_share=100)
    empty, full = state.members.join(0, 0), state.members.join(1, 0)
    state.members.ready(empty, 0)
    assert state.may_start(empty)
    state.start(empty)
    state.members.ready(full, 100)
    assert state.may_start(full)
    assert state.members.missing([1]) == []
    state.finish(empty)
    assert state.members.missing([1]) == []
    assert state.members.missing([]) == [1]


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        # All rows are known: one too few, and one too many.
        ([6, 0], 3),
        ([6, 0], 5),
        # More than the run has, before all have told theirs.
        ([6], 5),
        # More than one worker may have, whatever others have.
        ([], 7),
    ],
)
def test_rows_are_those_that_were_announced_and_no_worker_takes_those_of_others(told, wrong):
    state = make(seats=3, rows=10, largest_share=6)
    for number, rows in enumerate(told):
        state.members.ready(state.members.join(number, 0), rows)
    with pytest.raises(RefusedError, match=rf"\b{wrong}\b|\b{sum(told) + wrong}\b"):
        state.members.ready(state.members.join(2, 0), wrong)
    for number, rows in enumerate((6, 0, 4)):
        state.members.ready(state.members.join(number, 1), rows)
    assert state.members.started


def test_a_later_attempt_has_the_same_rows_as_far_as_it_is_known():
    state, one, other = make(), "0" * 16, "1" * 16
    for attempt, digest in enumerate(("", one, "", one)):
        state.members.ready(state.members.join(0, attempt), 100, digest=digest)
    with pytest.raises(RefusedError):
        state.members.ready(state.members.join(0, 4), 100, digest=other)
    state.members.ready(state.members.join(0, 5), 100, digest=one)


def test_the_driver_reads_what_a_worker_has_measured_and_which_road_it_takes():
    state = make()
    state.members.ready(state.members.join(0, 0), 100)
    state.members.ready(state.members.join(0, 1), 100, window_seconds=0.5, transport="tcp")
    ready = [event for event in kinds(state, WorkerRecord) if event.status == "ready"]
    assert [(each.window_seconds, each.transport) for each in ready] == [(None, None), (0.5, "tcp")]


def test_the_driver_reads_what_becomes_of_each_worker():
    state = make(seats=2, largest_share=60)
    first, second = begin(state, [60, 40])
    state.members.lose(first)
    again = state.members.join(0, 0)
    state.members.resume(again)
    state.finish(second)
    state.members.lose(second)
    newer = state.members.join(0, 3)
    state.members.fail(newer, "ValueError", "no")
    state.members.lose(newer)
    told = kinds(state, WorkerRecord)
    assert [(event.attempt, event.status) for event in told if event.worker == 0] == [
        *((0, status) for status in ("joined", "ready", "lost", "joined", "resumed", "fenced")),
        *((3, status) for status in ("joined", "failed")),
    ]
    assert [event.status for event in told if event.worker == 1] == ["joined", "ready", "finished"]
    assert [event.error for event in told if event.status == "failed"] == ["ValueError"]
    assert [(seat.attempt, seat.status) for seat in state.update(0).seats] == [
        (3, "failed"),
        (0, "finished"),
    ]


def test_workers_of_a_changed_number_name_only_the_epochs_that_are_left():
    earlier = PreviousProgress(epochs=2, version=7, folded=200)
    state = make(earlier=earlier)
    (session,) = begin(state, [100])
    for epoch in (0, 1, 2, 4):
        with pytest.raises(RefusedError):
            state.is_new(arrive(session, 0, epoch=epoch))
    assert state.is_new(arrive(session, 0, epoch=3))


@pytest.mark.parametrize(
    "pace",
    [
        {"window": 2},
        {"window": 7},
        {"window": None},
        {"window": None, "epochs_per_window": 2},
        {"window": None, "epochs_per_window": 3},
    ],
)
@pytest.mark.parametrize("before", [0, 1])
def test_every_window_of_the_schedule_is_admitted(pace, before):
    earlier = PreviousProgress(epochs=before, version=0, folded=11 * before) if before else None
    state = make(rows=11, batch_size=2, earlier=earlier, **pace)
    (session,) = begin(state, [11])
    for window in policy_of(state._spec.schedule, 11, 0).windows():
        samples = sum(block.size for block in window.blocks)
        told = {"epoch": window.epoch, "window": window.window, "steps": window.steps}
        fold(state, arrive(session, window.sequence, samples=samples, **told))
    assert state.all_finished


def test_a_worker_trains_no_row_more_often_than_there_are_epochs():
    state = make(seats=2, rows=10, epochs=2, largest_share=6)
    first, second = begin(state, [6, 4])
    fold(state, arrive(first, 0, samples=6))
    fold(state, arrive(first, 1, samples=6, version=1))
    for session, sequence in ((first, 2), (second, 0)):
        with pytest.raises(RefusedError):
            state.is_new(arrive(session, sequence, samples=9))
    assert state.is_new(arrive(second, 0, samples=4))


def test_an_epoch_ends_at_the_commit_that_completes_it():
    state = make(seats=2, rows=10, epochs=2, largest_share=6)
    first, second = begin(state, [6, 4])
    for session, sequence, samples in [
        (first, 0, 6),
        (second, 0, 3),
        (first, 1, 6),  # the fast seat is already in its next epoch
        (second, 1, 4),
        (second, 2, 1),
    ]:
        fold(state, arrive(session, sequence, samples=samples))
    assert [(event.epoch, event.version, event.samples) for event in kinds(state, EpochEnded)] == [
        (1, 3, 15),
        (2, 5, 20),
    ]


def test_one_commit_may_end_several_epochs_but_none_that_the_run_has_not():
    state = make(rows=3, window=None, epochs_per_window=3)
    (session,) = begin(state, [3])
    fold(state, arrive(session, 0, samples=9))
    assert [event.epoch for event in kinds(state, EpochEnded)] == [1, 2, 3]


def test_snapshots_are_due_at_equal_shares_of_the_epochs_samples():
    state = make(rows=10, epochs=2, snapshots_per_epoch=4)
    (session,) = begin(state, [10])
    due = [fold(state, arrive(session, number, samples=2))[1] for number in range(10)]
    assert due == [[], [1], [2], [3], [4], [], [5], [6], [7], [8]]


def test_commands_reach_the_next_reply():
    state = make()
    (session,) = begin(state, [100])
    state.command(stop=None, learning_rate=0.5)
    state.command(stop=True, learning_rate=None)
    reply, _ = fold(state, arrive(session, 0))
    assert (reply.stop, reply.learning_rate) == (True, 0.5)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(RefusedError):
            state.command(None, rate)


def test_a_quorum_of_finished_seats_ends_the_run_and_all_its_epochs():
    state = make(seats=3, rows=30, epochs=2, rule="averaging", quorum=0.6, snapshots_per_epoch=1)
    sessions = begin(state, [10] * 3)
    state.members.now = 1.0
    for sequence in range(2):
        fold_all(state, [arrive(s, sequence, samples=10) for s in sessions[:2]])
    assert list(state.finish(sessions[0])) == []
    assert not state.stop
    state.members.now = 3.0
    assert list(state.finish(sessions[1])) == [2]
    assert state.stop, "the third is not waited for"
    assert [event.at for event in kinds(state, EpochEnded)] == [1.0, 3.0]


def test_a_run_that_the_driver_has_stopped_ends_no_further_epoch():
    state = make(seats=1, rows=10, epochs=3)
    (session,) = begin(state, [10])
    fold(state, arrive(session, 0, samples=10))
    state.command(stop=True, learning_rate=None)
    assert list(state.finish(session)) == []
    assert len(kinds(state, EpochEnded)) == 1


def state_of(*numbers):
    return np.array(numbers, np.float64).tobytes()


def sums(state):
    return [tuple(np.frombuffer(event.state)) for event in kinds(state, EpochEnded)]


def test_states_of_metrics_are_added_by_epochs_each_once():
    state = make(seats=2, rows=8, epochs=2)
    first, second = begin(state, [4, 4])
    one = arrive(first, 0, samples=4, state=state_of(1, 10), sources={"loss": "total"})
    fold(state, one)
    assert not state.is_new(one), "it was folded before"
    state.repeat(one)
    again = Ledger.from_saved(state._spec, convert(state.to_saved(), SavedLedger))
    (_, seat) = begin(again, [4, 4])
    for ledger, session in ((state, second), (again, seat)):
        fold(ledger, arrive(session, 0, samples=4, state=state_of(2, 30)))
        assert sums(ledger) == [(3, 40)]
    assert [event.sources for event in kinds(state, EpochEnded)] == [{}]
    fold(state, arrive(second, 1, samples=4, epoch=2, window=0, state=state_of(5, 0)))
    fold(state, arrive(first, 1, samples=4, epoch=2, window=0, state=state_of(0.5, 1)))
    assert sums(state) == [(3, 40), (5.5, 1)]


def test_what_is_not_folded_is_not_added():
    state = make(seats=2, rows=8, epochs=1, rule="averaging", quorum=0.5)
    first, second = begin(state, [4, 4])
    fold(state, arrive(first, 0, samples=4, state=state_of(1)))
    state.drop(arrive(second, 0, samples=2, state=state_of(70)))
    state.skip(arrive(second, 1, samples=2, state=state_of(700)), "", None)
    assert sums(state) == [(1,)]


@pytest.mark.parametrize("wrong", [state_of(1), state_of(1, 2, 3), b"", b"12345678901"])
def test_a_state_of_other_metrics_is_refused(wrong):
    state = make(seats=1, rows=8)
    (session,) = begin(state, [8])
    fold(state, arrive(session, 0, state=state_of(1, 2)))
    with pytest.raises(RefusedError, match="the state of its metrics"):
        state.is_new(arrive(session, 1, state=wrong))


@pytest.mark.parametrize("wrong", [state_of(1, 2, 3), b""])
def test_states_of_one_round_are_as_long_as_each_other(wrong):
    """Both are taken before either is folded; one number would be added to all three."""
    state = make(seats=2, rows=8, rule="averaging")
    first, second = begin(state, [4, 4])
    waiting = arrive(first, 0, samples=2, state=state_of(1))
    assert state.is_new(waiting)
    with pytest.raises(RefusedError, match="the state of its metrics"):
        state.is_new(arrive(second, 0, samples=2, state=wrong), [waiting])


def test_a_refused_commit_says_nothing_of_the_states_of_others():
    state = make(seats=2, rows=8)
    first, second = begin(state, [4, 4])
    refused = arrive(first, 0, samples=2, state=state_of(1, 2), loss=math.nan)
    assert state.is_new(refused)
    with pytest.raises(RefusedError, match="the loss is nan"):
        state.check_finite(refused, finite=True)
    fold(state, arrive(second, 0, samples=2, state=state_of(1)))

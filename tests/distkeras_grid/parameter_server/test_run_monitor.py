"""Deadlines and endings of a run, told to a watch that has no clock."""

from __future__ import annotations

from typing import get_args

import pytest

from distkeras_grid.errors import (
    ClusterError,
    NoSpaceError,
    StartTimeoutError,
    TrainingError,
    WorkerFailedError,
)
from distkeras_grid.parameter_server.messages import SeatStatus
from distkeras_grid.parameter_server.run_monitor import (
    CallbackStop,
    FailRun,
    FinishRun,
    Restart,
    RunMonitor,
    StartRun,
    StatusUpdate,
    WindowTime,
)
from distkeras_grid.parameter_server.timeouts import Activity
from tests.specs import make_spec

STATES = (
    *("absent", "ready", "finished", "lost"),
    *(f"joined{activity}" for activity in ("", ": reading", ": importing", ": warming up")),
    *(f"running{activity}" for activity in ("", ": training", ": reading", ": waiting")),
)


def watched(*, synchronous=False, **changes):
    terms = {"workers": 2, "rows": 100, "start_timeout": 30.0, "round_timeout": 60.0, **changes}
    return RunMonitor(make_spec("averaging" if synchronous else "downpour", **terms))


def seat(number, state, samples=0, **told):
    """A seat in a state, such as ``joined`` or ``joined: reading``."""
    status, _, activity = state.partition(": ")
    attempt = told.pop("attempt", 10 + number)
    terms = {"activity": activity, "commits": samples, **told}
    return SeatStatus(number, attempt, status, 50, samples, **terms)


def looked(
    *states, version=1, folded=0, recorded=None, job_ended=False, samples=0, given_up=None, **terms
):
    workers = tuple(seat(n, state, samples, **terms) for n, state in enumerate(states))
    told = folded if recorded is None else recorded
    return StatusUpdate(workers, version, folded, told, job_ended, final_errors=given_up or {})


def restarts(actions):
    """Which attempts of which workers are started again, and after how long."""
    assert all(isinstance(action, Restart) for action in actions)
    return [(action.worker, action.attempt, action.seconds) for action in actions]


def error_of(actions):
    (action,) = actions
    assert isinstance(action, FailRun)
    return type(action.error)


def test_a_run_is_over_when_all_have_finished_and_all_rows_are_recorded():
    watch = watched()
    assert watch.handle(looked("running", "finished", folded=60), 0.0) == []
    assert watch.handle(looked("finished", "finished", folded=100), 1.0) == [FinishRun()]


@pytest.mark.parametrize(("folded", "recorded"), [(99, 99), (100, 99), (99, 100), (101, 101)])
def test_rows_that_are_missing_or_counted_twice_end_a_run(folded, recorded):
    actions = watched().handle(looked("finished", "finished", folded=folded, recorded=recorded), 0)
    assert error_of(actions) is TrainingError


@pytest.mark.parametrize(("skipped", "fails"), [(30, False), (29, True), (31, True)])
def test_skipped_rows_count_as_those_of_the_epochs(skipped, fails):
    states = seat(0, "finished"), seat(1, "finished")
    (action,) = watched().handle(StatusUpdate(states, 5, 70, 70, skipped=skipped), 0.0)
    assert isinstance(action, FailRun) == fails


def test_an_epoch_of_which_nothing_could_be_folded_ends_a_run():
    watch = watched(epochs=3)
    states = seat(0, "running"), seat(1, "running")

    def look(folded, skipped):
        return watch.handle(StatusUpdate(states, 1, folded, folded, skipped=skipped), 0.0)

    assert look(5, 60) == look(10, 120) == look(10, 219) == []
    assert error_of(look(10, 220)) is TrainingError


def test_a_quorum_ends_a_run_and_may_leave_rows_out():
    watch = watched(workers=5, quorum=0.8)
    assert watch.needed == 4
    late = looked(*["finished"] * 3, "running", "running", folded=70)
    assert watch.handle(late, 0.0) == []
    assert watch.handle(looked(*["finished"] * 4, "running", folded=80), 0.0) == [FinishRun()]
    torn = looked(*["finished"] * 4, "running", folded=80, recorded=79)
    assert error_of(watch.handle(torn, 0.0)) is TrainingError


def test_a_callback_ends_a_run_whatever_is_folded():
    watch = watched(epochs=5)
    assert not watch.stopped
    assert watch.handle(CallbackStop(), 0.0) == [FinishRun()]
    assert watch.stopped


def test_a_job_that_ends_too_early_ends_the_run():
    watch = watched()
    assert error_of(watch.handle(looked("finished", "lost", job_ended=True), 0)) is ClusterError
    # A job that ends after its last commit has done its work.
    ended = looked("finished", "finished", folded=100, job_ended=True)
    assert watch.handle(ended, 0.0) == [FinishRun()]


def without(watch, given_up, *states, now=0.0, **terms):
    """What a watch does when the jobs of these workers are not submitted again."""
    workers = tuple(
        seat(number, state, host=f"node-{number}", log=f"/logs/{number}", heartbeats=1)
        for number, state in enumerate(states)
    )
    look = StatusUpdate(workers, terms.pop("version", 1), 0, 0, final_errors=given_up, **terms)
    return watch.handle(look, now)


FULL = {1: NoSpaceError("the disk of /disk1 is full")}


def test_a_run_without_rounds_goes_on_without_who_is_given_up_and_then_ends_with_its_error():
    watch = watched(workers=3)
    for now in (0.0, 50.0):
        assert without(watch, FULL, "running: training", "lost", "lost", now=now) == []
    # Spark may still start the others.
    assert without(watch, FULL, "finished", "lost", "lost", now=55.0) == []
    (failed,) = without(watch, FULL, "finished", "lost", "finished", now=70.0)
    assert type(failed.error) is NoSpaceError
    for told in ("disk1", "worker 1 on node-1 (lost for 70 s", "sign of life 70 s", "/logs/1"):
        assert told in str(failed.error)
    assert "node-0" not in str(failed.error)


def test_nobody_waits_at_the_gate_for_who_is_given_up():
    watch = watched(workers=3)
    assert without(watch, FULL, "ready", "absent", "joined: reading", version=0) == []
    (begin,) = without(watch, FULL, "ready", "absent", "ready", version=0, now=1.0)
    assert (type(begin), begin.without) == (StartRun, (1,))
    assert without(watch, FULL, "running", "absent", "running", now=2.0) == []


@pytest.mark.parametrize(("quorum", "ends"), [(1.0, True), (0.6, False)])
def test_rounds_go_on_with_a_quorum_of_those_who_are_not_given_up(quorum, ends):
    watch = watched(synchronous=True, workers=3, quorum=quorum)
    actions = without(watch, FULL, "running", "lost", "running")
    assert [type(action) for action in actions] == [FailRun] * ends
    if not ends:
        other = {**FULL, 0: ClusterError("executor lost")}
        assert error_of(without(watch, other, "lost", "lost", "running")) is NoSpaceError


def test_who_is_given_up_is_not_started_again_though_the_server_still_sees_it():
    """The server hears nothing of a host that is gone."""
    watch = watched(workers=2)
    for now, done in ((0.0, 1), (61.0, 2), (122.0, 3)):
        other = seat(0, "running: training", done=done)
        look = StatusUpdate((other, seat(1, "running: training")), 1, 0, 0, final_errors=FULL)
        assert watch.handle(look, now) == []
    assert error_of(without(watch, FULL, "finished", "running: training", now=123.0)) is (
        NoSpaceError
    )


def test_the_end_of_all_jobs_has_the_error_of_who_was_given_up():
    actions = without(watched(), FULL, "lost", "lost", job_ended=True)
    assert error_of(actions) is NoSpaceError


def test_what_is_known_of_a_worker_is_told():
    watch = watched()
    newest = seat(1, "failed", host="node-1", log="/logs/1")
    assert (
        watch.describe(newest, 0.0)
        == "worker 1 on node-1 (failed for 0 s, Spark task 11, log /logs/1)"
    )
    watch.handle(looked("running", "joined: warming up"), 5.0)
    told = watch.describe(newest, 7.0)
    assert told == "worker 1 on node-1 (warm-up for 2 s, Spark task 11, log /logs/1)"


@pytest.mark.promise(
    "worker: never comes, or hangs before it connects",
    "After `start_timeout`, trainers without rounds begin without it, and those in rounds end with "
    "an error, unless a quorum is there.",
)
@pytest.mark.parametrize("state", ["absent", "lost"])
def test_the_workers_of_a_round_must_be_there_in_time(state):
    watch = watched(synchronous=True)
    for now in (5.0, 20.0, 35.0):
        assert watch.handle(looked("ready", state, version=0), now) == []
    assert error_of(watch.handle(looked("ready", state, version=0), 35.1)) is StartTimeoutError


@pytest.mark.promise(
    "worker: never comes, or hangs before it connects",
    "After `start_timeout`, trainers without rounds begin without it, and those in rounds end with "
    "an error, unless a quorum is there.",
)
@pytest.mark.parametrize("state", ["absent", "lost"])
def test_workers_that_do_not_wait_for_each_other_begin_without_who_does_not_come(state):
    watch = watched()
    for now in (5.0, 35.0):
        assert watch.handle(looked("ready", state, version=0), now) == []
    (begin,) = watch.handle(looked("ready", state, version=0), 35.1)
    assert (type(begin), begin.without) == (StartRun, (1,))
    # It may come as late as it likes, while others have work.
    for now in (36.0, 1e3):
        assert watch.handle(looked("running", state, samples=int(now)), now) == []


def test_the_gate_does_not_open_for_some_while_others_are_on_the_way():
    watch = watched(workers=3)
    told = looked("ready", "joined: reading", "absent", version=0)
    assert watch.handle(told, 0.0) == []
    for done in range(1, 10):
        # Its rows still come, so it is waited for, however long that takes.
        reading = seat(1, "joined: reading", done=done)
        told = StatusUpdate((seat(0, "ready"), reading, seat(2, "absent")), 0, 0, 0)
        assert watch.handle(told, 20.0 * done) == []
    (begin,) = watch.handle(looked("ready", "ready", "absent", version=0), 190.0)
    assert begin.without == (2,)


def test_the_time_to_start_begins_anew_when_all_were_there():
    watch = watched(round_timeout=1e3, synchronous=True)
    assert watch.handle(looked("running", "lost"), 0.0) == []
    assert watch.handle(looked("running", "running"), 29.0) == []
    assert watch.handle(looked("running", "lost"), 40.0) == []
    assert watch.handle(looked("running", "lost"), 69.0) == []
    assert error_of(watch.handle(looked("running", "lost"), 70.1)) is StartTimeoutError


def test_a_lost_worker_ends_the_run_when_nobody_else_has_work():
    watch = watched(round_timeout=1e6)
    assert watch.handle(looked("running", "lost"), 0.0) == []
    assert watch.handle(looked("running", "lost"), 1e3) == []
    assert watch.handle(looked("finished", "lost"), 1001.0) == []
    assert watch.handle(looked("finished", "lost"), 1031.0) == []
    assert error_of(watch.handle(looked("finished", "lost"), 1031.1)) is StartTimeoutError


def test_a_worker_that_gave_up_is_not_missing():
    """It has told why, and the driver reads that."""
    watch = watched(round_timeout=1e6)
    for now in (0.0, 31.0, 1e3):
        assert watch.handle(looked("finished", "failed"), now) == []
        assert watch.deadline == float("inf")


def test_a_quorum_goes_on_without_some_and_begins_without_them_too():
    terms = {"workers": 5, "quorum": 0.8, "synchronous": True}
    begun, waiting = watched(**terms), watched(**terms)
    told = looked(*["running"] * 4, "lost")
    assert begun.handle(told, 0.0) == begun.handle(told, 31.0) == []
    told = looked(*["ready"] * 4, "absent", version=0)
    assert waiting.handle(told, 0.0) == []
    (begin,) = waiting.handle(told, 31.0)
    assert begin.without == (4,)
    too_few = watched(**terms)
    told = looked(*["ready"] * 3, "absent", "lost", version=0)
    too_few.handle(told, 0.0)
    assert error_of(too_few.handle(told, 31.0)) is StartTimeoutError


#: States in which two workers stay, the version, how long that may last, and what is done then:
#: whose tasks are started again, whether the run begins, or which error ends it.
LIMITS = [
    (("running", "running"), 1, 60.0, [0, 1]),
    (("running", "running"), 0, 60.0, [0, 1]),
    (("running: training", "finished"), 1, 60.0, [0]),
    (("joined", "running"), 1, 30.0, [0]),
    *((("ready", f"joined: {activity}"), 0, 30.0, [1]) for activity in get_args(Activity)[:4]),
    (("finished", "lost"), 1, 30.0, StartTimeoutError),
    (("absent", "absent"), 0, 30.0, StartTimeoutError),
]


@pytest.mark.parametrize(
    ("states", "version", "seconds", "then", "synchronous"),
    [
        *((*limit, synchronous) for limit in LIMITS for synchronous in (True, False)),
        (("absent", "ready"), 0, 30.0, StartRun, False),
        (("running: waiting", "running: training"), 1, 60.0, [1], True),
    ],
)
def test_a_state_lasts_until_its_deadline_and_not_longer(
    states, version, seconds, then, synchronous
):
    watch, look = watched(synchronous=synchronous), looked(*states, version=version, heartbeats=1)
    assert watch.handle(look, 5.0) == []
    assert watch.deadline == 5.0 + seconds
    assert watch.handle(look, watch.deadline) == []
    actions, late = watch.handle(look, watch.deadline + 0.1), pytest.approx(seconds + 0.1)
    if isinstance(then, list):
        assert restarts(actions) == [(number, 10 + number, late) for number in then]
        # Counted anew.
        assert watch.handle(look, 5.0 + seconds + 0.2) == []
    else:
        (action,) = actions
        assert type(getattr(action, "error", action)) is then


@pytest.mark.parametrize(
    ("synchronous", "seconds", "progress"),
    [
        # Rows of a window, batches within one, commits that are too late for their rounds.
        (False, 50.0, lambda n: looked("running", "running", samples=n)),
        (False, 50.0, lambda n: looked("running: training", "finished", done=n, heartbeats=n)),
        (True, 50.0, lambda n: looked("running", "running", version=n, commits=n)),
        # The first start, however many rows there are, and whoever waits for it.
        (False, 29.0, lambda n: looked(*["joined: reading"] * 2, version=0, done=n)),
        (False, 29.0, lambda n: looked("ready", "joined: reading", version=0, done=n)),
        # One that is lost may come back while another one gets on.
        *(
            (False, 20.0, lambda n, other=other: looked(other, "lost", samples=n))
            for other in ("joined", "ready", "running")
        ),
    ],
)
def test_a_worker_that_makes_progress_is_waited_for(synchronous, seconds, progress):
    watch = watched(synchronous=synchronous)
    for number in range(50):
        assert watch.handle(progress(number), seconds * number) == []


@pytest.mark.parametrize("synchronous", [True, False])
def test_long_windows_are_waited_for(synchronous):
    watch = watched(synchronous=synchronous)
    watch.handle(WindowTime(0, 10.0), 0.0)
    watch.handle(looked("running", "running"), 0.0)
    assert restarts(watch.handle(looked("running", "running"), 199.0)) == [(1, 11, 199.0)]
    assert restarts(watch.handle(looked("running", "running"), 201.0)) == [(0, 10, 201.0)]


@pytest.mark.parametrize("state", ["joined", "running"])
def test_a_worker_that_no_restart_helps_ends_the_run(state):
    watch, now = watched(), 0.0
    for number in range(3):
        # Each attempt comes so far, and no further.
        attempt = SeatStatus(0, 10 + number, state, 50, 5)
        assert watch.handle(StatusUpdate((attempt,), 1, 5, 5), now) == []
        actions = watch.handle(StatusUpdate((attempt,), 1, 5, 5), now + 61.0)
        assert restarts(actions) == [(0, 10 + number, 61.0)]
        now += 62.0
    last = StatusUpdate((SeatStatus(0, 13, state, 50, 5),), 1, 5, 5)
    assert watch.handle(last, now) == []
    assert error_of(watch.handle(last, now + 61.0)) is WorkerFailedError


def test_a_worker_that_gets_on_after_a_restart_may_be_started_again():
    watch, now = watched(), 0.0
    for number in range(9):
        # It gets on with every third attempt: that is often enough.
        told = StatusUpdate((seat(0, "running", number // 3, attempt=10 + number),), 1, 5, 5)
        assert watch.handle(told, now) == []
        assert restarts(watch.handle(told, now + 61.0)) == [(0, 10 + number, 61.0)]
        now += 62.0


def test_a_run_that_goes_on_has_not_begun_with_the_version_of_its_checkpoint():
    """So that those who are there begin without those who are missing."""
    watch, see = RunMonitor(watched()._spec, since=7), looked("ready", "absent", version=7)
    watch.handle(see, 0.0)
    (begin,) = watch.handle(see, 31.0)
    assert begin.without == (1,)


@pytest.mark.parametrize(
    ("states", "terms", "limit"),
    [
        (("running", "finished"), {}, 60.0),
        (
            ("joined", "running", "running"),
            {"workers": 3, "quorum": 0.6, "synchronous": True},
            30.0,
        ),
    ],
)
def test_folds_of_others_give_a_worker_no_more_time(states, terms, limit):
    watch = watched(**terms)
    for number in range(4):
        look = looked(*states, version=1 + number)
        assert watch.handle(look, number * limit / 3) == []
    late = limit + 0.1
    assert restarts(watch.handle(looked(*states, version=6), late)) == [(0, 10, late)]


def test_a_quorum_goes_on_without_who_hangs_for_good():
    watch = watched(workers=3, quorum=0.6, synchronous=True)
    for number in range(20):
        workers = (
            seat(0, "running", number),
            seat(1, "running", number),
            seat(2, "running", 0, attempt=12 + number),
        )
        actions = watch.handle(StatusUpdate(workers, number, 0, 0), 61.0 * number)
        # It is started again and again, but nobody needs it.
        assert len(restarts(actions)) <= 1


def test_who_lives_and_is_busy_has_more_time_than_who_is_silent():
    """A window takes 10 s: 20 of them are waited for, if signs of life come."""
    busy, silent = watched(workers=1), watched(workers=1)
    for watch in (busy, silent):
        watch.handle(WindowTime(0, 10.0), 0.0)
        watch.handle(StatusUpdate((seat(0, "running: training", heartbeats=1),), 1, 0, 0), 0.0)
    for number in range(2, 20):
        told = StatusUpdate((seat(0, "running: training", heartbeats=number),), 1, 0, 0)
        assert busy.handle(told, 10.0 * number) == []
    told = StatusUpdate((seat(0, "running: training", heartbeats=1),), 1, 0, 0)
    assert silent.handle(told, 60.0) == []
    assert silent.deadline == 60.0
    assert restarts(silent.handle(told, 60.1)) == [(0, 10, 60.1)]


def test_an_error_names_worker_host_sign_of_life_and_log():
    watch = watched(workers=1, start_timeout=9.0)
    place = {"host": "node-7", "log": "/logs/7/stderr", "heartbeats": 3}
    for number in range(9):
        told = StatusUpdate((seat(0, "joined: warming up", **place),), 0, 0, 0)
        actions = watch.handle(told, 10.0 * number)
        if actions and isinstance(actions[0], FailRun):
            break
        assert all("node-7 (warm-up" in action.details for action in actions)
    text = str(actions[0].error)
    for part in ("worker 0 on node-7", "warm-up", "sign of life 10 s ago", "log /logs/7/stderr"):
        assert part in text


def test_no_limit_of_a_round_is_no_limit_of_silence():
    for synchronous in (False, True):
        watch = watched(round_timeout=None, synchronous=synchronous)
        watch.handle(looked("running", "running"), 0.0)
        assert watch.handle(looked("running", "running"), 1e9) == []
        assert watch.deadline == float("inf")


# -- no state without a deadline ----------------------------------------------------------------


def possible(state, other, *, together):
    """Whether a server keeps two workers in these states."""
    waits, both = ("ready", "running: waiting"), (state, other)
    if state in waits and other in (*waits, "finished"):
        return False  # It lets those go who wait for nobody.
    if "running: waiting" in both and not together:
        return False  # Nobody waits for the commits of others.
    # The gate is open once somebody runs.
    return not ("ready" in both and any(place.startswith("running") for place in both))


@pytest.mark.parametrize(
    ("state", "other", "together"),
    [
        (state, other, together)
        for state in STATES
        for other in ("finished", "ready", "absent", "lost", "running: waiting")
        for together in (True, False)
        if state != "finished" and possible(state, other, together=together)
    ],
)
@pytest.mark.parametrize("lives", [True, False])
def test_whatever_state_a_worker_stays_in_the_run_ends(state, other, together, lives):
    """No restart helps; the other waits, is not there, or has finished."""
    both = (state, other)
    watch, now, version = watched(synchronous=together), 0.0, int("running" in state)
    attempt = 10
    for number in range(60):
        seats = (
            seat(0, state, attempt=attempt, heartbeats=number * lives),
            seat(1, other, attempt=11, heartbeats=number * lives),
        )
        for action in watch.handle(StatusUpdate(seats, version, 0, 0), now):
            if isinstance(action, FailRun):
                return
            if isinstance(action, StartRun):
                # Who was ready starts, and then hangs.
                other, state = (s.replace("ready", "running: training") for s in (other, state))
                version = 1
            if isinstance(action, Restart):
                attempt += action.worker == 0
        if version and "ready" not in both:
            assert watch.deadline < float("inf"), "nothing is due"
        now = min(now + 30.0, watch.deadline) + 0.1
    raise AssertionError("no end")

"""A judge that fails, or memory that is used up, ends the run for everybody, who are told why."""

import pickle
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from distkeras_grid.errors import JudgeFailedError, ParameterServerError, RefusedError
from distkeras_grid.judges import JUDGES, Judge, Outliers, judge_spec
from distkeras_grid.parameter_server.messages import (
    FetchCenter,
    Gather,
    Poll,
    Ready,
    WindowCommit,
)
from distkeras_grid.parameter_server.mind import (
    DRIVER,
    Dismiss,
    Join,
    Lost,
    Received,
    Send,
    ServerMind,
)
from distkeras_grid.parameter_server.snapshots import IN_MEMORY, MemoryShelf
from distkeras_grid.records import SkippedRecord, WorkerRecord
from distkeras_grid.rules.magnitudes import size_of
from distkeras_grid.trainers.run import failure_of
from tests.specs import make_spec

SIZE, ROWS = 3, 6


@dataclass(frozen=True)
class Mistaken(Judge):
    """A judge of a user's own, which does what a test says."""

    name: ClassVar[str] = "mistaken"
    finds: ClassVar[object] = None

    def find(self, commits, seen):
        return Mistaken.finds(commits, seen)


@dataclass(frozen=True)
class MistakenNeed(Outliers):
    name: ClassVar[str] = "mistaken_need"

    @property
    def needs_course(self):
        raise LookupError("my own mistake")


def fails(commits, seen):
    raise LookupError("my own mistake")


@pytest.fixture(autouse=True)
def _judges(monkeypatch):
    for each in (Mistaken, MistakenNeed):
        monkeypatch.setitem(JUDGES, each.name, each)
    monkeypatch.setattr(Mistaken, "finds", fails)


def built(rule="downpour", judge=None, workers=2, center=None, shelf=None, **terms):
    rule = rule if isinstance(rule, dict) else {"name": rule, "parameters": {}}
    spec = make_spec(
        workers=workers,
        rule=rule,
        trainable_size=SIZE,
        rows=workers * ROWS,
        judge=judge_spec(judge),
        **terms,
    )
    center = np.ones(SIZE, np.float32) if center is None else center
    mind = ServerMind(spec, center, shelf)
    sessions = [mind.handle(Join(seat, 0), 0.0)[0].session for seat in range(workers)]
    for session in sessions:
        mind.handle(Received(session, Ready(ROWS, 0.1), np.empty(SIZE, np.float32)), 0.0)
    return spec, mind, sessions


def send(mind, session, sequence=0, value=0.5, version=0, vector=None, now=1.0):
    sent = np.full(SIZE, value, np.float32) if vector is None else vector
    commit = WindowCommit(sequence, version, 1, sequence, 1, 1, 0.5, {}, 0, 0)
    return mind.handle(Received(session, commit, sent, 10, size_of(sent)), now)


def failures(mind):
    (told,) = mind.handle(Received(DRIVER, Poll(0)), 2.0)
    return [e for e in told.message.events if isinstance(e, WorkerRecord) and e.error]


def dismissed(actions):
    assert all(isinstance(action, Dismiss) for action in actions)
    return {action.to: type(action.error) for action in actions}


def check_broken(mind, sessions, error, said):
    """Everybody is told, the driver once, and nobody goes on."""
    for session in sessions:
        with pytest.raises(error, match=said):
            send(mind, session)
    again = mind.handle(Join(0, 1), 2.0)[0].session
    with pytest.raises(error, match=said):
        mind.handle(Received(again, Ready(ROWS, 0.1), np.empty(SIZE, np.float32)), 2.0)
    with pytest.raises(RefusedError):
        mind.handle(Received(DRIVER, Gather(at_once=True)), 2.0)
    (told,) = failures(mind)
    assert told.error == error.__name__
    assert said in told.message


@pytest.mark.parametrize("rule", ["averaging", "downpour"])
def test_all_are_told_of_a_judge_that_raises(rule):
    """A round, or the first commits of all: before, nobody was answered, and the run hung."""
    _, mind, sessions = built(rule, Mistaken())
    assert send(mind, sessions[0]) == []
    assert dismissed(send(mind, sessions[1])) == dict.fromkeys(sessions, JudgeFailedError)
    said = "The judge 'mistaken' failed with LookupError: my own mistake"
    check_broken(mind, sessions, JudgeFailedError, said)
    # Nothing is folded by half, so the user may have the center.
    (told,) = mind.handle(Received(DRIVER, FetchCenter(None, 0)), 2.0)
    np.testing.assert_array_equal(told.vector, np.ones(SIZE))


def test_a_judge_that_raises_later_ends_an_asynchronous_run(monkeypatch):
    monkeypatch.setattr(Mistaken, "finds", lambda commits, _: [""] * len(commits))
    _, mind, sessions = built(judge=Mistaken())
    assert send(mind, sessions[0]) == []
    assert all(isinstance(action, Send) for action in send(mind, sessions[1]))
    monkeypatch.setattr(Mistaken, "finds", fails)
    (action,) = send(mind, sessions[0], 1, version=2)
    assert (action.to, type(action.error)) == (sessions[0], JudgeFailedError)
    assert mind.books.samples_folded == 2
    check_broken(mind, sessions, JudgeFailedError, "my own mistake")


def test_a_judge_that_raises_when_the_last_one_goes_is_told_to_who_waits():
    _, mind, sessions = built(judge=Mistaken())
    assert send(mind, sessions[0]) == []
    actions = mind.handle(Lost(sessions[1]), 1.0)
    assert dismissed(actions) == {sessions[0]: JudgeFailedError}
    check_broken(mind, sessions[:1], JudgeFailedError, "my own mistake")


@pytest.mark.parametrize(
    ("finds", "error", "said"),
    [
        (lambda *_: [""], "ValueError", "here 2"),
        (lambda *_: ["", "", ""], "ValueError", "here 2"),
        (lambda *_: "ab", "TypeError", "'ab'"),
        (lambda *_: None, "TypeError", "NoneType"),
        (lambda *_: [None, ""], "TypeError", r"\[None, ''\]"),
        (lambda *_: [True, False], "TypeError", r"\[True, False\]"),
        (lambda commits, _: (c.typo for c in commits), "AttributeError", "typo"),
    ],
)
@pytest.mark.parametrize("rule", ["averaging", "downpour"])
def test_a_judge_that_returns_something_else_than_findings(monkeypatch, rule, finds, error, said):
    monkeypatch.setattr(Mistaken, "finds", finds)
    _, mind, sessions = built(rule, Mistaken())
    send(mind, sessions[0])
    assert dismissed(send(mind, sessions[1])) == dict.fromkeys(sessions, JudgeFailedError)
    with pytest.raises(JudgeFailedError, match=said) as caught:
        send(mind, sessions[0])
    assert (caught.value.judge, caught.value.error) == ("mistaken", error)
    assert len(failures(mind)) == 1


def test_findings_are_kept_as_plain_texts_that_can_be_sent(monkeypatch):
    class Mine(str):
        __slots__ = ()

    told = iter([(Mine("file \udcff"), ""), ("x" * 5000, "")])
    monkeypatch.setattr(Mistaken, "finds", lambda *_: next(told))
    _, mind, sessions = built("averaging", Mistaken())
    for number in range(2):
        for session in sessions:
            send(mind, session, number, version=number)
    (update,) = mind.handle(Received(DRIVER, Poll(0)), 2.0)
    first, second = (e for e in update.message.events if isinstance(e, SkippedRecord))
    assert (type(first.reason), first.reason) == (str, "file \\udcff")
    assert len(second.reason) == 1000


@pytest.mark.parametrize("rule", ["averaging", "downpour"])
def test_a_judge_that_cannot_say_whether_it_needs_the_course(rule):
    _, mind, sessions = built(rule, MistakenNeed())
    send(mind, sessions[0])
    assert dismissed(send(mind, sessions[1])) == dict.fromkeys(sessions, JudgeFailedError)
    check_broken(mind, sessions, JudgeFailedError, "'mistaken_need' failed with LookupError")
    assert mind.books.samples_folded == 0
    (told,) = mind.handle(Received(DRIVER, FetchCenter(None, 0)), 2.0)
    np.testing.assert_array_equal(told.vector, np.ones(SIZE))


def test_the_error_of_a_judge_survives_the_way_to_the_driver():
    error = pickle.loads(pickle.dumps(JudgeFailedError.of("mine", ValueError("no"))))  # noqa: S301
    assert (error.judge, error.error) == ("mine", "ValueError")


def test_the_error_of_a_judge_can_be_sent():
    assert str(JudgeFailedError.of("mine", OSError("file \udcff"))).isascii()


def test_an_error_that_cannot_be_put_into_words_is_named():
    class Speechless(Exception):
        def __str__(self):
            raise RuntimeError

    error = JudgeFailedError.of("mine", Speechless())
    assert str(error) == "The judge 'mine' failed with Speechless: it cannot be put into words."


# Memory that is used up


class Full(np.ndarray):
    """A vector of which there is no room for a copy."""

    def copy(self, *_):
        raise MemoryError("no room")


def test_a_commit_that_is_in_the_center_and_not_in_the_books_never_counts_twice():
    """Between the two the server keeps a copy of the gradient, for which there is no memory."""
    _, mind, sessions = built("mean_gradient")
    assert send(mind, sessions[0], vector=np.full(SIZE, 0.5, np.float32).view(Full)) == []
    assert dismissed(send(mind, sessions[1])) == dict.fromkeys(sessions, ParameterServerError)
    assert mind.books.version == 0
    check_broken(mind, sessions, ParameterServerError, "failed with MemoryError: no room")


class FullShelf(MemoryShelf):
    """A full disk, and memory that is full, too."""

    def put(self, number, vector):  # noqa: ARG002
        raise MemoryError("no room")


def test_a_snapshot_for_which_there_is_no_room_ends_an_asynchronous_run():
    """Before, its worker sent the commit again, and the driver waited for the snapshot."""
    terms = {"epochs": 1, "snapshots_per_epoch": 12}
    _, mind, sessions = built(shelf=FullShelf(), **terms)
    for number in range(IN_MEMORY):
        send(mind, sessions[0], number, version=number)
    (action,) = send(mind, sessions[0], IN_MEMORY, version=IN_MEMORY)
    assert (action.to, type(action.error)) == (sessions[0], ParameterServerError)
    check_broken(mind, sessions, ParameterServerError, "failed with MemoryError: no room")


def test_who_waits_is_told_whatever_the_event_that_broke_the_mind():
    center = np.ones(SIZE, np.float32).view(Full)
    _, mind, sessions = built(judge=Outliers(), center=center)
    assert send(mind, sessions[0]) == []
    actions = mind.handle(Received(DRIVER, Gather(at_once=False)), 1.0)
    assert [(a.to, type(a.error)) for a in actions] == [
        (DRIVER, ParameterServerError),
        (sessions[0], ParameterServerError),
    ]
    assert failures(mind) == [], "the driver has it as the answer to its request"
    assert mind.handle(Lost(sessions[1]), 2.0) == [], "told once"
    with pytest.raises(ParameterServerError) as caught:
        send(mind, sessions[0])
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize("event", [Lost, lambda _: Join(1, 1)])
def test_who_waits_is_told_that_there_is_no_memory_when_another_one_comes_or_goes(event):
    center = np.ones(SIZE, np.float32).view(Full)
    _, mind, sessions = built("averaging", center=center, kept_limit=64)
    mind.handle(Received(DRIVER, Gather(at_once=False)), 1.0)
    assert send(mind, sessions[0]) == []
    # The checkpoint waits for both; the first one has nothing to tell.
    mind._gathering.lost(0)
    first, *rest = mind.handle(event(sessions[1]), 1.0)
    assert (first.to.seat, type(first.error)) == (1, ParameterServerError)
    assert dismissed(rest) == {sessions[0]: ParameterServerError}
    (told,) = failures(mind)
    assert (told.worker, told.error) == (1, "ParameterServerError")
    with pytest.raises(ParameterServerError, match="MemoryError"):
        send(mind, sessions[0])


def test_the_workers_read_the_error_of_the_judge_and_so_does_the_driver(serve, tools):
    """Over real sockets, and not that the port should be checked."""
    terms = {"judge": judge_spec(Mistaken())}
    bench = serve(seats=2, rule={"name": "averaging", "parameters": {}}, **terms)
    clients, driver = [bench.worker(seat) for seat in range(2)], bench.driver()
    tools.in_threads(*(lambda client=client: client.ready(50) for client in clients))
    errors = tools.in_threads(
        *(lambda client=client: tools.exchange(client, tools.commit(0)) for client in clients)
    )
    for error in errors:
        assert isinstance(error, JudgeFailedError)
        assert "my own mistake" in str(error)
    (told,) = (event for event in driver.poll(5).events if getattr(event, "error", None))
    found = failure_of(told, "worker 0 on node-3")
    assert isinstance(found, JudgeFailedError)
    assert "LookupError: my own mistake. Reported by worker 0 on node-3" in str(found)

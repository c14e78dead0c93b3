import numpy as np
import pytest

from distkeras_grid.errors import FencedError, RefusedError
from distkeras_grid.parameter_server.messages import (
    GetWorkerState,
    PutWorkerState,
    Ready,
    Resume,
    WorkerEnd,
)
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    Disconnect,
    JoinRequest,
    ReceivedMessage,
    SendReply,
)
from distkeras_grid.parameter_server.worker_state_store import (
    SHARE,
    WorkerStateSnapshot,
    WorkerStateStore,
)
from tests.distkeras_grid.parameter_server.conftest import make_commit
from tests.specs import make_spec


def kept(sequence, version=0, content=0):
    return WorkerStateSnapshot(sequence, version, np.full(8, content, np.uint8))


def test_nothing_is_asked_for_where_nothing_is_kept():
    assert not WorkerStateStore(2, active=False).asks(0, now=5.0)


def test_a_seat_is_asked_until_it_answers():
    keeping = WorkerStateStore(2, active=True)
    assert keeping.asks(0, now=5.0)
    assert keeping.asks(0, now=6.0)
    keeping.receive(0, kept(2), now=7.0)
    assert not keeping.asks(0, now=7.5)
    assert keeping.of(0).sequence == 2
    assert keeping.of(1) is None


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("took", [0.01, 3.0])
def test_it_costs_a_small_share_of_the_time_of_all_workers(workers, took):
    keeping, now, answers = WorkerStateStore(workers, active=True), 0.0, 0
    end = 200 * took * workers / SHARE
    while now < end:
        if keeping.asks(0, now):
            now += took
            keeping.receive(0, kept(answers), now)
            answers += 1
        else:
            now += took / 3
    assert answers == pytest.approx(SHARE * end / took / workers, rel=0.05)


def test_the_answer_may_come_twice_and_none_comes_unasked():
    keeping = WorkerStateStore(1, active=True)
    assert not keeping.awaits(0, sequence=1)
    keeping.asks(0, now=1.0)
    assert keeping.awaits(0, sequence=1)
    keeping.receive(0, kept(1), now=2.0)
    assert keeping.awaits(0, sequence=1)
    assert not keeping.awaits(0, sequence=2)


def test_a_lost_worker_is_not_waited_for_and_its_state_stays():
    keeping = WorkerStateStore(1, active=True)
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
    keeping = WorkerStateStore(1, active=True)
    keeping.asks(0, now=1.0)
    keeping.receive(0, kept(1), now=2.0)
    assert not keeping.asks(0, now=2.5)
    assert keeping.asks(0, now=2.5, wanted=True)
    assert not WorkerStateStore(1, active=False).asks(0, now=2.5, wanted=True)


def test_what_was_kept_in_an_earlier_execution_is_there():
    keeping = WorkerStateStore(3, active=True)
    for seat in (2, 0):
        keeping.hold(seat, kept(seat + 5))
    assert [(seat, each.sequence) for seat, each in keeping.all.items()] == [(0, 5), (2, 7)]
    assert sum(each.state.nbytes for each in keeping.all.values()) == 16


def test_a_worker_that_has_finished_is_not_waited_for():
    keeping = WorkerStateStore(1, active=True)
    keeping.asks(0, now=1.0)
    keeping.leave(0)
    assert not keeping.awaits(0, sequence=1)


SIZE, ROWS = 4, 10


class Server:
    """A core with one worker, which trains windows of one row."""

    def __init__(self, **changes):
        options = {"trainable_size": SIZE, "rows": ROWS, "worker_state_limit": 64, **changes}
        self.core = ServerCore(make_spec(**options), np.zeros(SIZE, np.float32))
        self.now = 1.0

    def tell(self, session, message, **parts):
        self.now += 1.0
        *_, answer = self.core.handle(ReceivedMessage(session, message, **parts), self.now)
        assert isinstance(answer, SendReply)
        return answer

    def start(self, attempt=0):
        seat, *_ = self.core.handle(JoinRequest(0, attempt), self.now)
        answer = self.tell(seat.session, Ready(ROWS, 0.0), vector=np.empty(SIZE, np.float32))
        return seat.session, answer.message

    def commit(self, session, sequence):
        vector = np.ones(SIZE, np.float32)
        return self.tell(session, make_commit(sequence), vector=vector).message

    def keep(self, session, sequence, version=0, content=0):
        state = np.full(8, content, np.uint8)
        return self.tell(session, PutWorkerState(sequence, version), state=state)


def test_another_attempt_is_given_what_was_kept_last():
    server = Server()
    first, start = server.start()
    assert not start.has_worker_state
    assert server.commit(first, 0).keep
    server.keep(first, 1, version=1, content=5)
    # The answer was lost, so it is told again.
    server.keep(first, 1, version=1, content=5)
    assert not server.commit(first, 1).keep
    second, start = server.start(attempt=1)
    assert (start.has_worker_state, start.next_sequence) == (True, 2)
    answer = server.tell(second, GetWorkerState())
    assert (answer.message.sequence, answer.message.version, answer.size) == (1, 1, 8)
    np.testing.assert_array_equal(answer.state, np.full(8, 5))
    with pytest.raises(FencedError):
        server.keep(first, 2)


def test_a_worker_that_was_asked_may_answer_over_another_connection():
    """Its own broke after the reply that had asked, or in the middle of the answer."""
    server = Server()
    session, _ = server.start()
    assert server.commit(session, 0).keep
    server.core.handle(Disconnect(session), server.now)
    seat, *_ = server.core.handle(JoinRequest(0, 0), server.now)
    server.tell(seat.session, Resume())
    server.keep(seat.session, 1, 1, content=5)
    _, start = server.start(attempt=1)
    assert start.has_worker_state


def test_another_attempt_is_not_asked_what_the_one_before_was():
    server = Server()
    session, _ = server.start()
    assert server.commit(session, 0).keep
    second, _ = server.start(attempt=1)
    with pytest.raises(RefusedError):
        server.keep(second, 1, 1)


def test_a_state_of_another_window_is_refused():
    server = Server()
    session, _ = server.start()
    with pytest.raises(RefusedError):
        server.keep(session, 0)
    server.commit(session, 0)
    for sequence, version in [(0, 0), (2, 0), (1, 2)]:
        with pytest.raises(RefusedError):
            server.keep(session, sequence, version)
    with pytest.raises(RefusedError):
        server.tell(session, GetWorkerState())
    server.keep(session, 1, 1)


def test_nobody_is_asked_at_the_end_or_where_nothing_is_kept():
    server = Server()
    session, _ = server.start()
    replies = [server.commit(session, sequence) for sequence in range(ROWS)]
    assert replies[-2].keep
    assert not replies[-1].keep
    server.tell(session, WorkerEnd())
    other = Server(worker_state_limit=0)
    assert not other.commit(other.start()[0], 0).keep


def test_an_attempt_with_other_rows_is_refused():
    server = Server()
    ready = {"vector": np.empty(SIZE, np.float32)}

    def join(attempt, digest):
        seat, *_ = server.core.handle(JoinRequest(0, attempt), server.now)
        return server.tell(seat.session, Ready(ROWS, 0.0, digest), **ready)

    join(0, "0" * 16)
    join(1, "0" * 16)
    with pytest.raises(RefusedError):
        join(2, "1" * 16)
    # An attempt that does not know it is believed, and the digest stays known.
    join(3, "")
    with pytest.raises(RefusedError):
        join(4, "1" * 16)

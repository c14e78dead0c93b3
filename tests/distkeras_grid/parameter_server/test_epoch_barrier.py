"""Between two epochs workers wait until callbacks have acted: the server's core alone."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import FencedError
from distkeras_grid.parameter_server.messages import (
    BeginCheckpoint,
    Command,
    CommitReply,
    FetchCenter,
    FetchStep,
    GoOn,
    Poll,
    PutOptimizerState,
    PutWorkerState,
    Ready,
    Resume,
    Start,
    WindowCommit,
)
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Disconnect,
    JoinRequest,
    ReceivedMessage,
    RejectWaiter,
)
from distkeras_grid.records import EpochEnded
from distkeras_grid.rules import rule_of
from tests.specs import make_spec

SIZE, ROWS, EPOCHS = 4, 2, 3
RULES = [("sequential", 1, {}), ("averaging", 2, {}), ("elastic_round", 2, {"alpha": 0.25})]


class Team:
    """A core and its workers, each of whose rows is a window."""

    def __init__(self, name="averaging", workers=2, parameters=None, **terms):
        rule = {"name": name, "parameters": parameters or {}}
        self.spec = make_spec(
            rule,
            trainable_size=SIZE,
            workers=workers,
            rows=ROWS * workers,
            epochs=EPOCHS,
            **{"epoch_barrier": True, "snapshots_per_epoch": 1, **terms},
        )
        self.core = ServerCore(self.spec, np.zeros(SIZE, np.float32))
        self.sessions = [self.join(seat) for seat in range(workers)]
        for seat in range(workers):
            self.ready(seat)
        self.sequence = 0

    def join(self, seat, attempt=0):
        return self.core.handle(JoinRequest(seat, attempt), 0.0)[0].session

    def hear(self, seat, message, now=0.0, **parts):
        event = ReceivedMessage(self.sessions[seat], message, **parts)
        return self.core.handle(event, now)

    def ready(self, seat):
        return self.hear(seat, Ready(ROWS, 0.0), vector=np.empty(SIZE, np.float32))

    def commit(self, seat, sequence):
        epoch, window = divmod(sequence, ROWS)
        told = WindowCommit(
            sequence, self.core.ledger.version, 1 + epoch, window, 1, 1, 0.5, {}, 0, 0
        )
        return self.hear(seat, told, vector=np.ones(SIZE, np.float32))

    def window(self):
        """Let each worker send a window; return all answers."""
        sequence, self.sequence = self.sequence, self.sequence + 1
        return [each for seat in range(self.spec.workers) for each in self.commit(seat, sequence)]

    def command(self, **told):
        command = Command(**{"stop": None, "learning_rate": None, **told})
        _, *sent = self.core.handle(ReceivedMessage(DRIVER, command), 1.0)
        return sent

    def poll(self):
        return self.core.handle(ReceivedMessage(DRIVER, Poll(0)), 0.0)[0].message


@pytest.mark.parametrize("rule", RULES)
def test_an_epochs_last_answer_waits_for_the_driver_and_has_its_rate(rule):
    team = Team(*rule)
    for epoch in range(1, EPOCHS):
        assert len(team.window()) == team.spec.workers
        assert not team.core.driver_is_due
        assert team.window() == []
        assert team.core.driver_is_due
        told = team.poll()
        assert sum(isinstance(event, EpochEnded) for event in told.events) == epoch
        assert {seat.activity for seat in told.seats} == {"waiting"}
        sent = team.command(learning_rate=1 / epoch, epochs=epoch)
        assert [(each.to.seat, each.message.learning_rate) for each in sent] == [
            (seat, 1 / epoch) for seat in range(team.spec.workers)
        ]
        assert not team.core.driver_is_due
        assert {seat.activity for seat in team.poll().seats} == {""}
    # After the last epoch nobody waits.
    assert [len(team.window()) for _ in range(2)] == [team.spec.workers] * 2


def test_workers_do_not_wait_where_no_callback_may_act():
    team = Team(epoch_barrier=False)
    assert [len(team.window()) for _ in range(ROWS)] == [2, 2]
    assert not team.core.driver_is_due


@pytest.mark.parametrize("rule", RULES)
def test_a_callback_that_ends_the_training_ends_the_wait(rule):
    team = Team(*rule)
    team.window(), team.window()
    sent = team.command(stop=True, epochs=1)
    assert [each.message.stop for each in sent] == [True] * team.spec.workers


@pytest.mark.parametrize("rule", RULES)
def test_a_worker_that_dies_at_the_end_of_an_epoch_is_told_to_start_with_the_next(rule):
    team = Team(*rule)
    team.window(), team.window()
    gone = team.sessions[0]
    team.core.handle(Disconnect(gone), 0.0)
    team.sessions[0] = team.join(0, attempt=1)
    assert team.ready(0) == []
    sent = team.command(learning_rate=0.25, epochs=1)
    assert gone not in [each.to for each in sent]
    (start,) = [each.message for each in sent if isinstance(each.message, Start)]
    assert (start.next_sequence, start.learning_rate, start.rates) == (2, 0.25, ((2, 0.25),))


def test_an_answer_that_is_lost_at_the_end_of_an_epoch_is_asked_for_again():
    team = Team()
    team.window(), team.window()
    old = team.sessions[0]
    seat, dismissed = team.core.handle(JoinRequest(0, 0), 0.0)
    assert isinstance(dismissed, RejectWaiter)
    assert dismissed.to == old
    assert isinstance(dismissed.error, FencedError)
    team.sessions[0] = seat.session
    team.hear(0, Resume())
    assert team.commit(0, 1) == []
    sent = team.command(epochs=1)
    assert {each.to for each in sent} == set(team.sessions)


def test_a_server_that_was_replaced_waits_for_the_driver_again():
    """It was saved when the epoch had ended, and the driver acts on that once more."""
    team = Team("sequential", 1)
    team.window(), team.window()
    parts = team.core.ledger.to_saved()
    assert parts["epochs_ended"] == 1
    again = Team("sequential", 1)
    again.core.ledger._work[0].samples_folded = again.core.ledger._work[0].next_sequence = ROWS
    again.core.ledger.samples_folded, again.core.ledger._epochs_ended = ROWS, 1
    again.sessions[0] = again.join(0, attempt=1)
    assert again.ready(0) == []
    (start,) = again.command(learning_rate=0.5, epochs=1)
    assert (start.message.next_sequence, start.message.learning_rate) == (ROWS, 0.5)


def test_where_workers_make_the_steps_the_next_round_waits():
    """The driver sees weights that a worker sends after the epoch's last round."""
    team = Team("mean_gradient")
    team.window()
    answers = [each.message for each in team.window()]
    assert [type(message) for message in answers] == [CommitReply] * 2
    asked = next(seat for seat, message in enumerate(answers) if message.state_wanted)
    assert not team.core.driver_is_due
    (step,) = team.hear(asked, FetchStep(0))
    assert step.message.learning_rate is None
    told = {"vector": np.full(SIZE, 2, np.float32), "state": np.empty(0, np.uint8)}
    team.hear(asked, PutOptimizerState(2), **told)
    assert team.core.driver_is_due
    center = team.core.handle(ReceivedMessage(DRIVER, FetchCenter(1, 0)), 0.0)[0].vector
    np.testing.assert_array_equal(center, 2)
    # Gradients of the next epoch's first round depend on no rate, but the step does.
    assert team.window() == []
    sent = team.command(learning_rate=0.5, epochs=1)
    assert [type(each.message) for each in sent] == [CommitReply] * 2
    (step,) = team.hear(0, FetchStep(2))
    assert step.message.learning_rate == 0.5
    assert rule_of(team.spec.rule).traits.steps_on_workers


@pytest.mark.parametrize("took", [0.0, 1.0])
def test_workers_that_wait_for_the_driver_send_what_they_keep_for_a_checkpoint(took):
    """Before they go on: what is saved is the state between the two epochs.

    If it took them time, they are not asked again soon, but for the checkpoint.
    """
    team = Team(worker_state_limit=64)
    for seat, answer in enumerate(team.window()):
        assert answer.message.keep
        team.hear(seat, PutWorkerState(1, 1), took, state=np.zeros(8, np.uint8))
    asked = team.window()
    _, *more = team.core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=False)), 1.0)
    assert (len(asked), len(more)) == ((0, 2) if took else (2, 0))
    assert [each.message.keep for each in [*asked, *more]] == [True, True]
    for seat in range(2):
        assert not team.poll().captured
        assert team.hear(seat, PutWorkerState(2, 2), state=np.zeros(8, np.uint8)) == []
    assert team.poll().captured
    sent = team.command(learning_rate=0.5, epochs=1)
    assert [each.message for each in sent] == [GoOn(stop=False, learning_rate=0.5)] * 2


def test_a_checkpoint_does_not_wait_for_workers_that_cannot_answer_before_the_driver_acts():
    team = Team("sequential", 1, worker_state_limit=64)
    assert team.window()[0].message.keep
    team.hear(0, PutWorkerState(1, 1), state=np.zeros(8, np.uint8))
    team.window()
    team.core.handle(Disconnect(team.sessions[0]), 0.0)
    team.sessions[0] = team.join(0, attempt=1)
    assert team.ready(0) == []
    team.core.handle(ReceivedMessage(DRIVER, BeginCheckpoint(at_once=False)), 1.0)
    assert team.poll().captured

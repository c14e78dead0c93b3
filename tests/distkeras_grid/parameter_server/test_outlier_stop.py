"""The server's core with an outlier that stops the run.

Whoever waits is told, and the driver is told once.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis.stateful import rule

from distkeras_grid.errors import (
    OutlierError,
    RefusedError,
)
from distkeras_grid.parameter_server.messages import (
    BeginCheckpoint,
    Command,
    FetchCenter,
    Poll,
    Ready,
    WindowCommit,
    WorkerEnd,
)
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    JoinRequest,
    RejectWaiter,
)
from distkeras_grid.records import WorkerRecord
from distkeras_grid.spec import Outliers
from tests.distkeras_grid.parameter_server.test_server_core import (
    NUMBERS,
    ROWS,
    SEATS,
    SIZE,
    VALUES,
    JudgedMachine,
    idle,
    quick_and_long,
)


class Broke(Exception):
    """The run has ended with an event: who sent it, what the core answered, what it raised."""

    def __init__(self, session, actions, error=None):
        self.session, self.actions, self.error = session, actions, error


class Breaking:
    """Now and then an outlier ends the run. Then all that must hold is checked."""

    error = OutlierError
    watches = False

    def say(self, session, message, vector=None, state=None):
        try:
            actions = super().say(session, message, vector, state)
        except self.error as error:
            if not self.watches or type(error) is not self.error:
                raise
            raise Broke(session, [], error) from error
        errors = [a.error for a in actions if isinstance(a, RejectWaiter)]
        if self.watches and self.error in map(type, errors):
            raise Broke(session, actions)
        return actions

    def check_left(self, actions):
        """A worker that has gone may have been the last one whom others waited for."""
        errors = [a.error for a in actions if isinstance(a, RejectWaiter)]
        if self.watches and self.error in map(type, errors):
            # Some of those who waited may have been answered before the outlier came.
            raise Broke(DRIVER, actions)
        super().check_left(actions)

    def breaks(self, act):
        """Let things happen until the run has ended; it may not come to that."""
        self.watches = True
        try:
            act()
        except Broke as broke:
            self.watches = False
            self.check_broken(broke)
            self.begin(all_there=True)
        finally:
            self.watches = False

    # What holds then

    def check_broken(self, broke):
        """The model is as it was before the event."""
        waited = {w.session for w in self.workers if w.waits is not None}
        if broke.error is None:
            # Each is answered once; who began before the outlier came has begun.
            told = [action.to for action in broke.actions]
            assert len(set(told)) == len(told)
            due = waited | ({broke.session} if broke.session != DRIVER else set())
            assert set(told) == due
            errors = [a.error for a in broke.actions if isinstance(a, RejectWaiter)]
            assert {type(error) for error in errors} == {self.error}
        else:
            assert not waited, "they are left without an answer"
        self.check_told()
        self.check_center()
        self.check_nobody_goes_on()
        self.check_told()

    def check_told(self):
        """The driver is told once; no event is held back, as it takes no checkpoint."""
        (update,) = self.say(DRIVER, Poll(0, self.number))
        failed = [
            event.error
            for event in update.message.events
            if isinstance(event, WorkerRecord) and event.status == "failed"
        ]
        assert failed == ["RefusedError"] * len(self.failed) + [self.error.__name__]

    def check_center(self):
        """Nothing of an outlier is in the center, which can be had."""
        (told,) = self.say(DRIVER, FetchCenter(None, 0))
        assert np.isfinite(told.vector).all()

    def check_nobody_goes_on(self):
        with pytest.raises(RefusedError):
            self.say(DRIVER, BeginCheckpoint(at_once=True))
        for worker in self.workers:
            if worker.status == "running":
                sent = WindowCommit(
                    worker.sequence, worker.version, 1, worker.sequence, 1, 1, 0.5, {}, 0, 0
                )
                with pytest.raises(self.error):
                    self.say(worker.session, sent, np.ones(SIZE, np.float32))
        session = self.core.handle(JoinRequest(0, 10**6), self.now)[0].session
        with pytest.raises(self.error):
            self.say(session, Ready(ROWS, 0.1), np.empty(SIZE, np.float32))
        assert self.say(DRIVER, Command(True, None, begin=True))
        for number in range(1, SEATS):
            worker = self.workers[number]
            if worker.status == "running":
                assert self.say(worker.session, WorkerEnd())[0].to == worker.session
        assert not self.core._waiters.gate
        assert not self.core._waiters.round


class StoppingMachine(Breaking, JudgedMachine):
    """An outlier stops the run."""

    outliers = Outliers(on_outlier="stop")

    @rule(payload=VALUES, number=NUMBERS)
    def commit_what_is_poisoned(self, payload, number):
        def poisoned():
            for seat, worker in enumerate(self.workers):
                if idle(worker):
                    self.commit_one(seat, payload * np.float32(1000 if seat == number else 1), 1)

        self.breaks(poisoned)


TestStopping, TestMoreStopping = quick_and_long(StoppingMachine)

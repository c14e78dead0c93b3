"""Mistakes in what is done about faults: the product of faults notices each of them.

Each mistake is made in a mind, and the runs with the fault that it concerns have to fail. What
`python -m tests.mutants --faults` does for every line, this does for every promise, in seconds.
"""

from __future__ import annotations

import math

import pytest

from distkeras_grid.errors import GridError
from distkeras_grid.parameter_server.keeping import Keeping
from distkeras_grid.parameter_server.mind import Send, ServerMind
from distkeras_grid.parameter_server.state import ServerState
from distkeras_grid.parameter_server.watch import RunWatch
from distkeras_grid.trainers.tries import Tries
from tests.invariants import test_fault_product as product


def folds_again(self, arrival, admit=ServerState.admit):
    """A commit that was folded is folded once more."""
    if not admit(self, arrival):
        self._seats[arrival.session.seat].next_sequence = arrival.commit.sequence
    return True


def takes_other_rows(self, session, rows, seconds=0.0, digest="", road="", ready=ServerState.ready):
    return ready(self, session, rows, seconds, "", road)


def impatient(self, clock, due=RunWatch._due):
    return clock.since + (due(self, clock) - clock.since) / 8


def blames_all(self, workers, now, told=RunWatch._told):
    return told(self, self._clocks, now)


def forgets_who_was_asked(self, event, join=ServerMind._join):
    self._keeping.lose(event.seat)
    return join(self, event)


#: What is wrong: the class, the name of its method, the method in its place, and the fault and the
#: family whose runs have to fail.
MISTAKES = {
    "an old connection is heard": (
        *(ServerState, "_current", lambda self, session: self._seats[session.seat]),
        *("zombie twin", "delta"),
    ),
    "a commit counts twice": (ServerState, "admit", folds_again, "reset", "delta"),
    "other rows are taken": (ServerState, "ready", takes_other_rows, "rows changed", "delta"),
    "a quorum waits for all": (
        *(ServerState, "needed", lambda self, present: len(self._seats)),  # noqa: ARG005
        *("slot gone", "averaging with quorum"),
    ),
    "changes are told to who knows nothing": (
        *(ServerMind, "_resume"),
        lambda self, event, now: [Send(event.sender, self.books.resume(event.sender))],  # noqa: ARG005
        *("reset", "staleness"),
    ),
    "a lost worker stays in its round": (
        *(ServerMind, "_drop", lambda self, seat, only=None: []),  # noqa: ARG005
        *("kill", "averaging"),
    ),
    "who connects again is not asked any more": (
        *(ServerMind, "_join", forgets_who_was_asked, "reset", "elastic"),
    ),
    "what a worker keeps is thrown away": (
        *(Keeping, "receive", lambda self, seat, kept, now: None),  # noqa: ARG005
        *("kill", "elastic"),
    ),
    "nobody is started again": (
        *(RunWatch, "_restarts", lambda self, overdue, now: []),  # noqa: ARG005
        *("stop", "single"),
    ),
    "there are no deadlines": (
        *(RunWatch, "_due", lambda self, clock: math.inf),  # noqa: ARG005
        *("slot gone", "synchronous"),
    ),
    "who is slow is started again": (RunWatch, "_due", impatient, "slow", "ensemble"),
    "others are blamed": (RunWatch, "_told", blames_all, "slot gone", "server state"),
    "who cannot start is tried for ever": (
        *(Tries, "once_more", lambda self, seat, rows: True),  # noqa: ARG005
        *("executor x5", "single"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(monkeypatch, mistake):
    owner, name, method, fault, family = MISTAKES[mistake]
    kind = "DGC" if (family, "DGC", fault) in product.MEANINGFUL else "BatchNorm"
    # What is undisturbed may be remembered from a run without the mistake, and not from this one.
    product.undisturbed(family, kind)
    monkeypatch.setattr(owner, name, method)
    with pytest.raises((AssertionError, GridError)):
        product.test_whatever_dies_wherever_the_run_ends_as_promised(family, kind, fault)

"""Every rule through every way to break a connection: the center is a sequential replay's.

A real service and real clients in one process, a relay between them. What was folded is written
down as the clients sent it, and folded again by an undisturbed service, one commit after the other;
both centers are the same, bit for bit, on dyadic data.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from distkeras_grid.errors import FencedError
from distkeras_grid.parameter_server.messages import CommitReply, WindowCommit
from distkeras_grid.records import WindowRecord
from distkeras_grid.rules import (
    RULES,
    AsynchronousRule,
    LocalSteps,
    apply_reply,
    build_rule,
    compute_commit,
)
from tests.distkeras_grid.parameter_server.relay import Fault, Relay

PARAMETERS = {
    "adagrad": {"rate": 0.25},
    "elastic": {"alpha": 0.25},
    "elastic_momentum": {"alpha": 0.25},
    "elastic_round": {"alpha": 0.25},
}
TRAINABLE, STATISTICS = 8, 4
#: Which seat commits when, where each commit is folded at once.
ORDER = (0, 1, 0, 0, 1, 1, 0, 1, 0, 1)
ROUNDS = 5
#: The seat and the number of the commit, from 1, whose exchange is disturbed.
SEAT, NTH = 1, 2
FAULTS = {
    "undisturbed": [],
    "reset while sending": [Fault(WindowCommit, "reset", NTH, SEAT, after=0.5)],
    "closed while sending": [Fault(WindowCommit, "close", NTH, SEAT, after=0.9)],
    "reset before the reply": [Fault(CommitReply, "reset", NTH, SEAT)],
    "closed in the reply": [Fault(CommitReply, "close", NTH, SEAT, after=0.5)],
    "sent and answered in vain": [
        Fault(WindowCommit, "close", NTH, SEAT, after=30),
        # Of the commit that is sent again.
        Fault(CommitReply, "close", NTH, SEAT, after=9),
    ],
}
#: A newer attempt takes the seat: the older one's reply is lost, or its commit is still on the way.
TAKE_OVERS = {
    "taken over after the fold": Fault(CommitReply, "swallow", NTH, SEAT),
    "taken over before the commit arrives": Fault(WindowCommit, "hold", NTH, SEAT, seconds=30),
}


@dataclass
class Told:
    """A commit as a worker has sent it."""

    seat: int
    commit: WindowCommit
    payload: np.ndarray
    reply: np.ndarray | None = None


@dataclass
class Script:
    """What happened, in an order in which it can happen again."""

    #: Rounds of commits, and the seats that a new attempt took.
    events: list[list[Told] | int] = field(default_factory=list)


class Worker:
    """A worker's loop, a window at a time, on dyadic weights."""

    def __init__(self, client, rule, seat, start):
        self.client, self.rule, self.seat = client, rule, seat
        self.before = client.vector.copy()
        self.version, self.sequence = start.version, start.next_sequence
        self.seen = []
        if rule.traits.steps_on_workers:
            self.catch_up(start.newest)

    def propose(self, tools):
        """Train a window; return what is sent."""
        change = np.float32(0.25 * (self.seat + 1)) - self.before * np.float32(0.5)
        gradients = self.rule.traits.local_steps in (LocalSteps.GRADIENT, LocalSteps.NONE)
        self.after = change.copy() if gradients else self.before + change
        self.after[TRAINABLE:] = self.before[TRAINABLE:] + change[TRAINABLE:]
        payload = np.empty_like(self.before)
        sections = tools.settings(**SIZES).spec.layout.sections
        compute_commit(self.rule, sections, self.before, self.after, 2, payload)
        commit = tools.commit(self.sequence, version=self.version, steps=2, samples=4)
        return Told(self.seat, commit, payload)

    def exchange(self, told, tools):
        reply = self.before
        answer = self.client.exchange(told.commit, told.payload.copy(), reply)
        told.reply = reply.copy()
        self.sequence += 1
        if self.rule.traits.steps_on_workers:
            self.catch_up(answer.version)
        else:
            sections = tools.settings(**SIZES).spec.layout.sections
            apply_reply(self.rule, sections, self.after, reply, out=self.before)
            self.version = answer.version

    def catch_up(self, newest):
        """Make the steps of the rounds, by SGD with rate 1."""
        while self.version < newest:
            gradient = np.empty_like(self.before)
            self.client.fetch_step(self.version, gradient)
            self.before = self.before - gradient
            self.seen.append(gradient)
            self.version += 1


SIZES = {"trainable_size": TRAINABLE, "statistics_size": STATISTICS, "rows": 1000, "seats": 2}


def started(bench, rule, tools, addresses, **how):
    clients = [bench.worker(seat, address=addresses[seat], **how) for seat in range(2)]
    starts = tools.in_threads(*(lambda c=client: c.ready(500) for client in clients))
    return [Worker(*entry) for entry in zip(clients, [rule] * 2, range(2), starts, strict=True)]


def play(bench, rule, tools, relay, how, fault):
    """Train with two workers, one of them behind the relay; return the script and the workers."""
    workers = started(bench, rule, tools, [bench.address, relay.address], **how)
    turns = [[seat] for seat in ORDER]
    if not isinstance(rule, AsynchronousRule):
        turns = [[0, 1]] * ROUNDS
    script, count = Script(), 0
    for turn in turns:
        told = [workers[seat].propose(tools) for seat in turn]
        count += SEAT in turn
        if fault in TAKE_OVERS and SEAT in turn and count == NTH:
            take_over(bench, rule, tools, relay, how, workers, told, script)
            continue
        script.events.append(told)
        results = tools.in_threads(
            *(lambda w=workers[each.seat], t=each: w.exchange(t, tools) for each in told)
        )
        assert results == [None] * len(told), results
    return script, workers


def take_over(bench, rule, tools, relay, how, workers, told, script):
    """Let a newer attempt take a seat while the older one waits for its reply."""
    fenced = []

    def exchange(each):
        (error,) = tools.in_threads(lambda: workers[each.seat].exchange(each, tools))
        if error is not None:
            fenced.append(error)

    threads = [threading.Thread(target=exchange, args=(each,)) for each in told]
    for thread in threads:
        thread.start()
    tools.wait_until(lambda: len(relay.struck) == 1)
    folded = relay.struck[0].kind is CommitReply
    if folded:
        script.events.append(told)
    client = bench.worker(SEAT, attempt=1, **how)
    newer = Worker(client, rule, SEAT, client.ready(500))
    script.events.append(SEAT)
    relay.release()
    if folded:
        relay.cut()
    else:
        # The older attempt's commit arrives now, over a connection that never broke.
        tools.wait_until(lambda: len(fenced) == 1, 10)
        again = newer.propose(tools)
        script.events.append([again, *(each for each in told if each.seat != SEAT)])
        newer.exchange(again, tools)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert [type(error) for error in fenced] == [FencedError]
    workers[SEAT] = newer


def replay(bench, script, tools, rule, how):
    """Fold what a script tells, undisturbed; return the center and the steps that were seen."""
    workers = started(bench, rule, tools, [bench.address] * 2, **how)
    for event in script.events:
        if isinstance(event, int):
            client = bench.worker(event, attempt=1, **how)
            workers[event] = Worker(client, rule, event, client.ready(500))
            continue

        def send(each):
            reply = np.empty_like(each.payload)
            answer = workers[each.seat].client.exchange(each.commit, each.payload.copy(), reply)
            if rule.traits.steps_on_workers and each.seat == 0:
                gradient = np.empty_like(reply)
                workers[0].client.fetch_step(answer.version - 1, gradient)
                workers[0].seen.append(gradient)
            if (
                rule.traits.reply_has_vector
                and not rule.traits.keeps_weights
                and each.reply is not None
            ):
                np.testing.assert_array_equal(each.reply.view(np.uint32), reply.view(np.uint32))

        results = tools.in_threads(*(lambda e=each: send(e) for each in event))
        assert results == [None] * len(event), results
    return bench.driver().center(), workers[0].seen


@pytest.mark.parametrize(
    ("fault", "compression"),
    [(fault, None) for fault in [*FAULTS, *TAKE_OVERS]]
    + [(fault, "dgc") for fault in ("sent and answered in vain", *TAKE_OVERS)],
)
@pytest.mark.parametrize("name", RULES)
def test_the_center_is_that_of_a_sequential_replay(serve, tools, name, fault, compression):
    rule = build_rule(name, PARAMETERS.get(name, {}))
    how = {"compression": compression}
    settings = {
        **SIZES,
        "rule": {"name": name, "parameters": rule.parameters()},
        "compression": compression,
    }
    bench = serve(**settings)
    faults = [TAKE_OVERS[fault]] if fault in TAKE_OVERS else FAULTS[fault]
    with Relay(bench.address, *faults) as relay:
        script, workers = play(bench, rule, tools, relay, how, fault)
        assert len(relay.struck) == len(faults)
    driver = bench.driver()
    told, center = driver.poll(5), driver.center()
    undisturbed, seen = replay(serve(**settings), script, tools, rule, how)
    np.testing.assert_array_equal(center.view(np.uint32), undisturbed.view(np.uint32))
    np.testing.assert_array_equal(workers[0].seen, seen)
    commits = [each for event in script.events if not isinstance(event, int) for each in event]
    assert told.samples_folded == 4 * len(commits)
    folded = [event for event in told.events if isinstance(event, WindowRecord)]
    assert [event.version for event in folded] == sorted(event.version for event in folded)
    assert len(folded) == len(commits)
    if isinstance(rule, AsynchronousRule) and not rule.traits.own_center:
        # What the window started from is what the commit names, whatever broke meanwhile.
        assert [event.staleness for event in folded] == [
            event.version - 1 - each.commit.version
            for event, each in zip(folded, commits, strict=True)
        ]
    if not rule.traits.steps_on_workers:
        assert center.any()

"""A run that goes on from a checkpoint, on the cores alone: any rule, any moment, any order.

Workers act one at a time in a random order, so each run is another interleaving. In rounds, and
with one worker, a driver halves the rate between epochs. The result does not depend on the order
there, and must be that of an uninterrupted run, bit for bit. In all other runs no sample may be
lost or folded twice.
"""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.array_tree import pack
from distkeras_grid.parameter_server.checkpoint_state import repartition, trained_so_far
from distkeras_grid.parameter_server.messages import BeginCheckpoint, Command, FetchPart, Poll
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import DRIVER, ReceivedMessage
from distkeras_grid.records import EpochEnded, WindowRecord
from distkeras_grid.rules import SynchronousRule, build_rule
from tests.invariants.fault_runs import Attempt, FaultyRun
from tests.invariants.small_runs import DGC, SEAT_ROWS

EPOCHS = 3
ROWS = 3 * SEAT_ROWS


class Worker(Attempt):
    """A worker whose replies are on their way for a while."""

    def take(self, sent):
        self.run.later(0.0, lambda: super(Worker, self).take(sent))


class Run(FaultyRun):
    """A run without faults, whose workers and driver act one at a time in a random order."""

    def __init__(self, rule, workers, seed, compression=None, parts=(), **schedule):
        self.random = np.random.default_rng(seed)
        # Alone or in rounds, workers wait for the driver.
        barrier = workers == 1 or isinstance(rule, SynchronousRule)
        changes = {"epochs": EPOCHS, "epoch_barrier": barrier, **schedule}
        kind = "DGC" if compression else "Adam"
        super().__init__((rule.name, rule.parameters(), workers, changes), kind)
        if parts:
            self.core = ServerCore.resumed(self.spec, parts)
        if barrier:
            self.halve(self.core.ledger._epochs_ended)
        for seat in range(workers):
            self.spawn(seat)

    def later(self, seconds, act):  # noqa: ARG002
        self.queue.append(act)

    def spawn(self, seat):
        self.attempts.append(Worker(self, seat, next(self.numbers), digest=""))
        self.later(0.0, self.attempts[-1].go)

    def halve(self, epochs):
        """Halve the rate after each epoch, as a driver does whenever its turn comes."""
        command = Command(None, 0.1 / 2**epochs, epochs=epochs)
        _, *sent = self.core.handle(ReceivedMessage(DRIVER, command), self.now)
        self.do(sent)

    def ask(self, message):
        sent, *others = self.core.handle(ReceivedMessage(DRIVER, message), self.now)
        self.do(others)
        return sent

    def go(self, steps=10**6):
        """Let workers and driver act so often; return how often they have."""
        for done in range(steps):
            due = self.core.driver_is_due
            if not self.queue and not due:
                return done
            self.now += 1.0
            if due and (not self.queue or self.random.random() < 0.5):
                self.halve(self.core.ledger.epochs_acted + 1)
            else:
                self.queue.pop(self.random.integers(len(self.queue)))()
        return steps

    def checkpoint(self):
        """Ask for a checkpoint, go on until its state is taken, and return its parts."""
        self.ask(BeginCheckpoint(at_once=False))
        seen, events = 0, []
        while not (update := self.ask(Poll(seen)).message).captured:
            events += update.events
            seen += len(update.events)
            assert self.go(1)
        events += update.events
        first = self.ask(FetchPart(update.captured, 0))
        parts = [pack(first.tree)]
        parts += [
            self.ask(FetchPart(update.captured, n)).state for n in range(1, first.message.parts)
        ]
        return parts, [event for event in events if isinstance(event, WindowRecord)]

    def folded(self):
        events = self.ask(Poll(0)).message.events
        return [event for event in events if isinstance(event, WindowRecord)]

    @property
    def are_over(self):
        return all(attempt.over for attempt in self.attempts)


#: Interleavings of each run; more of them in make test-full.
SEEDS = [range(3), pytest.param(range(3, 15), marks=pytest.mark.full)]
EXACT = [
    *((name, parameters, 1, None) for name, parameters in [("downpour", {}), ("sequential", {})]),
    ("downpour", {}, 1, DGC),
    ("elastic", {"alpha": 0.25}, 1, None),
    ("averaging", {}, 3, None),
    ("elastic_round", {"alpha": 0.25}, 3, None),
    ("mean_gradient", {}, 3, None),
    ("mean_gradient", {}, 3, DGC),
    ("member", {}, 3, None),
]
COUNTED = [
    ("downpour", {}, DGC),
    ("dynamic_rate", {}, None),
    ("elastic", {"alpha": 0.25}, None),
    ("elastic_momentum", {"alpha": 0.25}, None),
    ("energy_matching", {}, None),
]


def centers(run):
    return np.stack([run.core.center.of(seat) for seat in range(run.workers)])


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize(("name", "parameters", "workers", "compression"), EXACT)
def test_a_run_alone_or_in_rounds_ends_bit_for_bit_where_it_would_have(
    name, parameters, workers, compression, seeds
):
    rule = build_rule(name, parameters)
    undisturbed = Run(rule, workers, 0, compression)
    total = undisturbed.go()
    expected = centers(undisturbed)
    for seed in seeds:
        run = Run(rule, workers, seed, compression)
        run.go(int(np.random.default_rng(seed).integers(total)))
        parts, _ = run.checkpoint()
        # Twice, so that what a resumed run keeps is right, too.
        for again in range(2):
            run = Run(rule, workers, seed + again, compression, parts)
            if not again:
                run.go(int(np.random.default_rng([seed, 1]).integers(total)))
                parts, _ = run.checkpoint()
        run.go()
        np.testing.assert_array_equal(centers(run), expected)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize(("name", "parameters", "compression"), COUNTED)
def test_a_run_of_several_workers_loses_and_repeats_no_window(name, parameters, compression, seeds):
    rule, due = build_rule(name, parameters), {}
    for seed in seeds:
        run = Run(rule, 3, seed, compression)
        run.go(int(np.random.default_rng(seed).integers(150)))
        parts, before = run.checkpoint()
        second = Run(rule, 3, seed + 1, compression, parts)
        second.go()
        assert second.are_over
        found = [(w.worker, w.epoch, w.window) for w in [*before, *second.folded()]]
        due = {(n, e, w) for n in range(3) for e in range(1, EPOCHS + 1) for w in range(3)}
        assert len(found) == len(set(found))
        assert set(found) == due
        assert np.isfinite(centers(second)).all()


#: Rules whose workers have shares of the rows, with and without rounds.
SHARED = [
    *COUNTED,
    ("averaging", {}, None),
    ("elastic_round", {"alpha": 0.25}, None),
    ("mean_gradient", {}, None),
    ("mean_gradient", {}, DGC),
]


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("workers", [2, 9])
@pytest.mark.parametrize(("name", "parameters", "compression"), SHARED)
def test_other_workers_train_every_row_once_in_each_epoch_that_was_not_complete(
    name, parameters, compression, workers, seeds
):
    rule = build_rule(name, parameters)
    for seed in seeds:
        run = Run(rule, 3, seed, compression)
        run.go(int(np.random.default_rng(seed).integers(150)))
        parts, before = run.checkpoint()
        center = run.core.center.vector.copy()
        earlier = trained_so_far(parts[0])
        trained = sum(window.samples for window in before)
        assert (earlier.folded, earlier.epochs) == (trained, trained // ROWS)
        changed = {"rows": ROWS, "earlier": earlier}
        anew = [repartition(parts[0], workers)]
        second = Run(rule, workers, seed + 1, compression, anew, **changed)
        np.testing.assert_array_equal(second.core.center.vector, center)
        second.go()
        assert second.are_over
        found = second.folded()
        assert {window.epoch for window in found} == set(range(1 + earlier.epochs, EPOCHS + 1))
        for epoch in range(1 + earlier.epochs, EPOCHS + 1):
            assert sum(window.samples for window in found if window.epoch == epoch) == ROWS
        assert second.core.ledger.samples_folded == second.spec.schedule.samples
        events = second.ask(Poll(0)).message.events
        ended = [event for event in events if isinstance(event, EpochEnded)]
        assert [event.epoch for event in ended] == list(range(1 + earlier.epochs, EPOCHS + 1))
        again = second.spec.schedule.repeated
        assert all(event.samples >= event.epoch * ROWS + again for event in ended)

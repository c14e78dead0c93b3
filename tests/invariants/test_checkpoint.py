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
from distkeras_grid.feeding.batches import policy_of
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.parameter_server.checkpoint_state import repartition, trained_so_far
from distkeras_grid.parameter_server.messages import (
    BeginCheckpoint,
    Command,
    CommitReply,
    FetchPart,
    FetchState,
    FetchStep,
    GetWorkerState,
    GoOn,
    OptimizerState,
    Poll,
    PutOptimizerState,
    PutWorkerState,
    Ready,
    Start,
    Step,
    WorkerEnd,
    WorkerStateReply,
)
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    JoinRequest,
    ReceivedMessage,
    SendReply,
    message_event,
)
from distkeras_grid.records import EpochEnded, WindowRecord
from distkeras_grid.rules import (
    DeepGradientCompression,
    SynchronousRule,
    accumulators,
    build_rule,
)
from distkeras_grid.worker import worker_core as cores
from distkeras_grid.worker.engine_actions import apply_action, shared_state
from distkeras_grid.worker.loop import compute
from distkeras_grid.worker.worker_core import WorkerCore
from distkeras_grid.worker.worker_state import WorkerState
from tests.quadratic_learner import QuadraticLearner
from tests.specs import make_spec

SIZE, SEAT_ROWS, EPOCHS = 3, 6, 3
ROWS = 3 * SEAT_ROWS
DGC = DeepGradientCompression(0.5, warm_up_epochs=0)


class Worker:
    """A worker's core and engine; what the server has sent it waits in its inbox."""

    def __init__(self, run, number):
        self.run, self.number, self.inbox, self.over = run, number, [], False
        self.count = run.spec.rows // run.workers
        steps = run.rule.traits.local_steps
        momentum = 0.0 if run.rule.traits.plain_sgd and number >= 0 else 0.9
        start = np.ones(SIZE, np.float32)
        self.engine = QuadraticLearner(start, 1.0, 0.1, momentum, local_steps=steps)
        rng = np.random.default_rng(number)
        rows = rng.normal(size=(self.count, SIZE)).astype(np.float32)
        self.rows = ArraySource([rows], [np.zeros(self.count)])
        plan = policy_of(run.spec.schedule, self.count, number)
        held = accumulators(run.compression, self.engine.layout, run.workers)
        self.core = WorkerCore(number, run.rule, self.engine.layout, plan, accumulator=held)
        self.wanted, self.new = None, self.engine.state()
        self.vector = np.empty(SIZE, np.float32)
        self.join()

    def join(self):
        seat, *_ = self.run.core.handle(JoinRequest(self.number, 0), self.run.now)
        self.session = seat.session

    def ready(self):
        self.run.hear(self.session, Ready(self.count, 0.0), vector=self.vector)

    def tell(self, event):
        *orders, self.wanted = self.core.handle(event)
        for order in orders:
            apply_action(order, self.engine, self.new)

    def can_act(self):
        return (self.inbox or self.wanted is not None) and not self.over

    def act(self):
        if self.inbox:
            self.hear(self.inbox.pop(0))
        else:
            action, self.wanted = self.wanted, None
            self.carry_out(action)

    def carry_out(self, action):
        match action:
            case cores.Compute(window):
                self.tell(compute(action, self.engine, self.rows.blocks(window.blocks)))
            case cores.Exchange(commit, payload, _):
                np.copyto(self.vector, payload)
                self.run.hear(self.session, commit, vector=self.vector)
            case cores.RequestStep(version):
                self.run.hear(self.session, FetchStep(version))
            case cores.RequestState():
                self.run.hear(self.session, FetchState())
            case cores.StoreOptimizerState(version, weights):
                told = {"vector": weights, "state": shared_state(self.engine, version)}
                self.run.hear(self.session, PutOptimizerState(version), **told)
                self.inbox.pop()
                self.tell(cores.HandedOver())
            case cores.StoreWorkerState(sequence, version, before, offset, held):
                own = WorkerState(before, offset, held, dict(self.engine.state())).to_bytes()
                self.run.hear(self.session, PutWorkerState(sequence, version), state=own)
            case cores.Reconnect():
                self.ready()
            case cores.RestoreWorkerState():
                self.run.hear(self.session, GetWorkerState())
            case cores.FinishWorker():
                self.over = True
                self.run.hear(self.session, WorkerEnd())

    def hear(self, sent):
        vector = None if sent.vector is None else sent.vector.copy()
        match sent.message:
            case Start() as start:
                self.known = vector.copy()
                self.tell(cores.StartAnswer(start, vector))
            case CommitReply() as message:
                if vector is not None:
                    if self.run.compression:
                        bits = self.known.view(np.uint32)
                        np.bitwise_xor(bits, vector.view(np.uint32), out=bits)
                        vector = self.known.copy()
                    np.copyto(self.core.before, vector)
                self.tell(message)
            case GoOn() as message:
                self.tell(message)
            case Step() as step:
                np.copyto(self.core.after, vector)
                self.tell(step)
            case OptimizerState():
                self.tell(cores.StateAnswer(sent.state))
            case WorkerStateReply() as kept:
                own = WorkerState.from_bytes(sent.state)
                self.tell(cores.RestoreAnswer(kept.sequence, kept.version, own))


class Driver:
    """Halves the rate after each epoch, whenever its turn comes."""

    def __init__(self, run):
        self.run = run

    def can_act(self):
        return self.run.core.driver_is_due

    def act(self):
        self.tell(self.run.core.ledger.epochs_acted + 1)

    def tell(self, epochs):
        command = Command(None, 0.1 / 2**epochs, epochs=epochs)
        _, *sent = self.run.core.handle(ReceivedMessage(DRIVER, command), self.run.now)
        self.run.deliver(sent)


class Run:
    """A server's core and its workers; alone or in rounds, they wait for the driver."""

    def __init__(self, rule, workers, seed, compression=None, parts=(), **schedule):
        self.rule, self.workers, self.compression = rule, workers, compression
        self.now, self.random = 0.0, np.random.default_rng(seed)
        shared = rule.traits.steps_on_workers
        momentum = (
            QuadraticLearner(np.ones(SIZE, np.float32), 1.0, 0.1, 0.9, rule.traits.local_steps)
            if not rule.traits.plain_sgd
            else None
        )
        self.spec = make_spec(
            rule,
            trainable_size=SIZE,
            rows=SEAT_ROWS * workers,
            workers=workers,
            epochs=EPOCHS,
            batch_size=2,
            seed=4,
            compression=compression,
            state=momentum.step_section.variables if shared else (),
            worker_state_limit=1 << 16,
            epoch_barrier=workers == 1 or isinstance(rule, SynchronousRule),
        ).change(**schedule)
        self.driver = Driver(self)
        self.team = []
        self.serve(parts)
        self.team = [Worker(self, number) for number in range(workers)]
        for worker in self.team:
            worker.ready()

    def serve(self, parts):
        """Begin with a server; the driver tells it where the run is."""
        if parts:
            self.core = ServerCore.resumed(self.spec, parts)
        else:
            self.core = ServerCore(self.spec, np.ones(SIZE, np.float32))
        if self.spec.schedule.epoch_barrier:
            self.driver.tell(self.core.ledger._epochs_ended)

    def hear(self, session, message, **parts):
        self.now += 1.0
        event = message_event(self.spec.layout.state_section, session, message, **parts)
        self.deliver(self.core.handle(event, self.now))

    def deliver(self, actions):
        for sent in actions:
            if isinstance(sent, SendReply) and sent.to != DRIVER:
                self.team[sent.to.seat].inbox.append(sent)

    def ask(self, message):
        (sent,) = self.core.handle(ReceivedMessage(DRIVER, message), self.now)
        return sent

    def go(self, steps=10**6):
        """Let workers act so often; return how often they have."""
        for done in range(steps):
            ready = [each for each in (*self.team, self.driver) if each.can_act()]
            if not ready:
                return done
            ready[self.random.integers(len(ready))].act()
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

    def windows(self):
        events = self.ask(Poll(0)).message.events
        return [event for event in events if isinstance(event, WindowRecord)]


#: Interleavings of each run; more of them in make test-full.
SEEDS = [range(3), pytest.param(range(3, 15), marks=pytest.mark.full)]
FEW = [range(1), pytest.param(range(1, 15), marks=pytest.mark.full)]
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
        assert all(worker.over for worker in second.team)
        found = [(w.worker, w.epoch, w.window) for w in [*before, *second.windows()]]
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
        assert all(worker.over for worker in second.team)
        found = second.windows()
        assert {window.epoch for window in found} == set(range(1 + earlier.epochs, EPOCHS + 1))
        for epoch in range(1 + earlier.epochs, EPOCHS + 1):
            assert sum(window.samples for window in found if window.epoch == epoch) == ROWS
        assert second.core.ledger.samples_folded == second.spec.schedule.samples
        events = second.ask(Poll(0)).message.events
        ended = [event for event in events if isinstance(event, EpochEnded)]
        assert [event.epoch for event in ended] == list(range(1 + earlier.epochs, EPOCHS + 1))
        again = second.spec.schedule.repeated
        assert all(event.samples >= event.epoch * ROWS + again for event in ended)

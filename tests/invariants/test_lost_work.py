"""What is lost and repeated, and what each epoch has."""

import numpy as np
import pytest

from distkeras_grid.parameter_server.membership import ConnectionId
from distkeras_grid.parameter_server.messages import Ready, WindowCommit
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import JoinRequest, ReceivedMessage
from distkeras_grid.rules import (
    SequentialRule,
    build_rule,
)
from distkeras_grid.simulation.cluster import Outage
from tests.contracts.test_rules import built
from tests.invariants.quadratics import build, descend, trained
from tests.specs import make_spec

RULES_BUILT = built()
ROWS = np.random.default_rng(0).normal(size=(4, 11, 6)).astype(np.float32)


@pytest.mark.parametrize("rule", RULES_BUILT)
def test_R2_a_lost_worker_costs_no_row(rule):
    """Another attempt goes on from the center with the window that was not folded."""
    found = trained(
        rule,
        ROWS,
        start=np.ones(6),
        rate=0.1,
        batch=2,
        window=2,
        epochs=2,
        momentum=rule.local_momentum,
        outages=[Outage(2, at=4.5, seconds=1.0), Outage(2, at=9.5, seconds=1.0)],
    )
    assert found.lost == 2
    places = [(r.worker, r.epoch, r.window) for r in found.history.records]
    assert sorted(places) == [(w, e, k) for w in range(4) for e in (1, 2) for k in range(3)]
    assert found.history.samples == 2 * 4 * 11
    assert {record.attempt for record in found.history.select(worker=2)} == {0, 1, 2}


def test_R2_an_elastic_worker_comes_back_from_the_center():
    simulation = build(
        build_rule("elastic", {"alpha": 0.25}),
        ROWS,
        start=np.ones(6),
        outages=[Outage(1, at=4.5, seconds=1.0)],
    )
    while simulation.workers[1].attempt < 1:
        simulation.advance()
    assert simulation.now == 5.5
    assert (simulation.workers[1].before == simulation.center).all()


@pytest.mark.parametrize("rule", RULES_BUILT)
def test_R3_a_repeated_commit_changes_nothing(rule):
    spec = make_spec(rule=rule, trainable_size=6, rows=4)
    core = ServerCore(spec, np.ones(6))
    session = ConnectionId(0, 0, 1)
    core.handle(JoinRequest(0, 0), 0.0)
    core.handle(ReceivedMessage(session, Ready(4, 0.0), np.empty(6)), 0.0)

    def send(sequence, now):
        version = core.ledger.version
        commit = WindowCommit(sequence, version, 1, sequence, 1, 2, 0.5, {}, 0.0, 1.0)
        vector = ROWS[0][sequence].astype(float)
        return core.handle(ReceivedMessage(session, commit, vector), now)

    send(0, 1.0)
    center, version = core.center.vector.copy(), core.ledger.version
    (again,) = send(0, 2.0)
    assert (core.center.vector == center).all()
    assert (core.ledger.version, core.ledger.samples_folded) == (version, 2)
    assert again.message.version == version
    send(1, 3.0)
    assert core.ledger.version == version + 1


def test_S1_one_worker_alone_is_sequential_sgd():
    rows = np.random.default_rng(0).normal(size=(1, 23, 4))
    found = trained(SequentialRule(), rows, start=np.ones(4), rate=0.1, momentum=0.5, window=5)
    expected = descend(np.ones(4), rows[0], rate=0.1, momentum=0.5)
    assert (found.center == expected).all()


@pytest.mark.parametrize("rule", RULES_BUILT)
def test_S2_every_epoch_has_all_its_batches(rule):
    """``E * ceil(D / b)`` steps: partial batches and windows are trained, and travel."""
    found = trained(
        rule,
        ROWS,
        start=np.ones(6),
        rate=0.1,
        batch=3,
        window=3,
        epochs=3,
        momentum=rule.local_momentum,
    )
    assert sum(record.steps for record in found.history.records) == 4 * 3 * 4
    assert found.history.samples == 4 * 3 * 11
    assert [record.epoch for record in found.history.epoch_records] == [1, 2, 3]

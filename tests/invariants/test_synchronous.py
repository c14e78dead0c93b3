"""Rounds: what n workers with a batch of b share with one worker with a batch of n b."""

import numpy as np
import pytest

from distkeras_grid.rules import AveragingRule, CommitInfo, ElasticRoundRule, MeanGradientRule
from distkeras_grid.simulation.cluster import Outage
from tests.invariants.quadratics import build, descend, trained

ROWS = np.random.default_rng(0).integers(-32, 32, (4, 6, 3)).astype(float)


def batches(rows, size):
    """The mean of each batch: batches of all workers put together, step by step."""
    steps = -(-len(rows[0]) // size)
    return [
        np.concatenate([r[step * size : (step + 1) * size] for r in rows]).mean(axis=0)
        for step in range(steps)
    ]


@pytest.mark.parametrize("rule", [AveragingRule(), MeanGradientRule()])
def test_Q1_workers_are_one_worker_with_all_their_batches(rule):
    found = trained(rule, ROWS, start=np.ones(3), batch=2)
    # The rows of one worker, ordered so that its batches of 8 are those of the four together.
    together = ROWS.reshape(4, 3, 2, 3).swapaxes(0, 1).reshape(1, 24, 3)
    one = trained(rule, together, start=np.ones(3), batch=8)
    assert (found.center == descend(np.ones(3), batches(ROWS, 2))).all()
    np.testing.assert_allclose(one.center, found.center, rtol=1e-15)
    assert found.version == one.version == 3


@pytest.mark.parametrize("rule", [AveragingRule(), MeanGradientRule()])
def test_Q2_unequal_batches_are_weighted_by_their_samples(rule):
    rows = [ROWS[0][:1], ROWS[1][:3]]
    found = trained(rule, rows, start=np.ones(3), batch=4)
    np.testing.assert_allclose(found.center, descend(np.ones(3), batches(rows, 4)), rtol=1e-15)


def test_Q3_a_quorum_of_all_is_everyone():
    runs = [trained(AveragingRule(), ROWS, start=np.ones(3), quorum=q) for q in (1.0, 0.9)]
    assert (runs[0].center == runs[1].center).all()
    assert not runs[1].history.late


@pytest.mark.parametrize("rule", [AveragingRule(), ElasticRoundRule(0.25), MeanGradientRule()])
def test_a_round_is_of_one_epoch_and_of_all_workers(rule):
    """Of 33 and 32 rows in batches of 16, only the first worker has a third batch, of one row."""
    rows = np.random.default_rng(2).normal(size=(65, 3))
    found = trained(rule, [rows[:33], rows[33:]], start=np.ones(3), batch=16, rate=0.1, epochs=8)
    rounds = {}
    for record in found.history.records:
        rounds.setdefault(record.version, set()).add((record.worker, record.epoch))
    assert list(rounds.values()) == [{(0, n // 2 + 1), (1, n // 2 + 1)} for n in range(16)]
    assert found.history.samples == 8 * 65


def test_a_round_of_windows_with_short_batches_is_their_joint_batch():
    """Windows of batches of 4, 4 and 2 rows, and of 4, 4 and 1."""
    rows = np.random.default_rng(3).normal(size=(19, 3))
    found = trained(
        MeanGradientRule(),
        [rows[:10], rows[10:]],
        start=np.ones(3),
        batch=4,
        window=3,
        momentum=0.5,
    )
    assert found.version == 1
    np.testing.assert_allclose(found.center, descend(np.ones(3), [rows.mean(axis=0)]), rtol=1e-14)


def test_averaging_of_unequal_shares_is_that_of_these_lines():
    rows = np.random.default_rng(2).normal(size=(65, 3))
    shares = rows[:33], rows[33:]
    found = trained(AveragingRule(), shares, start=np.ones(3), batch=16, rate=0.1, epochs=2)
    center, windows = np.ones(3), 32 // 16
    for _ in range(2):
        for window in range(windows):
            stop = None if window == windows - 1 else 16
            parts = [share[16 * window :][:stop] for share in shares]
            batches = [
                [part[n : n + 16].mean(axis=0) for n in range(0, len(part), 16)] for part in parts
            ]
            trained_weights = [descend(center, each, rate=0.1) for each in batches]
            center = np.average(trained_weights, axis=0, weights=[len(part) for part in parts])
    np.testing.assert_allclose(found.center, center, rtol=1e-14)


@pytest.mark.parametrize("gone", [0, 3])
@pytest.mark.parametrize("rule", [AveragingRule(), MeanGradientRule()])
def test_Q3_without_one_worker_the_rest_is_the_batch(rule, gone):
    """Lost before its first window is done, for ever."""
    found = trained(
        rule,
        ROWS,
        start=np.ones(3),
        batch=2,
        quorum=0.75,
        outages=[Outage(gone, at=0.5)],
    )
    rest = [rows for number, rows in enumerate(ROWS) if number != gone]
    np.testing.assert_allclose(found.center, descend(np.ones(3), batches(rest, 2)), rtol=1e-14)
    assert {record.worker for record in found.history.records} == {0, 1, 2, 3} - {gone}


@pytest.mark.parametrize("rule", [AveragingRule(), ElasticRoundRule(0.25), MeanGradientRule()])
def test_Q4_a_late_commit_leaves_the_center_as_it_is(rule):
    simulation = build(
        rule,
        ROWS,
        start=np.ones(3),
        quorum=0.75,
        momentum=0.5,
        times="exponential",
        seed=1,
        speeds=[1, 1, 1, 0.4],
    )
    late = 0
    while True:
        before, version, slots = simulation.center, simulation.version, velocity(simulation)
        if not simulation.advance():
            break
        if len(simulation.history.late) > late:
            late += 1
            assert (simulation.center == before).all()
            assert simulation.version == version
            assert (velocity(simulation) == slots).all()
    assert late >= 3
    assert all(record.staleness >= 1 for record in simulation.history.late)
    assert simulation.history.samples == simulation.samples


def velocity(simulation):
    """The slots of each worker's optimizer."""
    return np.concatenate([learner.state()["velocity"] for learner in simulation.learners])


def test_Q4_a_late_worker_goes_on_from_the_center():
    simulation = build(AveragingRule(), ROWS, start=np.ones(3), quorum=0.75, speeds=[1, 1, 1, 0.7])
    while not simulation.history.late:
        simulation.advance()
    assert (simulation.workers[3].before == simulation.center).all()


@pytest.mark.parametrize("rule", [AveragingRule(), ElasticRoundRule(0.3), MeanGradientRule()])
def test_Q6_who_comes_first_does_not_matter(rule):
    """Real numbers, whose sums depend on their order."""
    rows = np.random.default_rng(1).normal(size=(5, 12, 8)).astype(np.float32)
    centers = [
        trained(
            rule,
            rows,
            start=np.ones(8),
            rate=0.1,
            dtype=np.float32,
            times="exponential",
            seed=seed,
        ).center
        for seed in range(4)
    ]
    assert all((center == centers[0]).all() for center in centers[1:])


def test_Q6_the_sum_in_another_order_would_be_another_one():
    rows = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    sums = []
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0]):
        center = np.ones(8, np.float32)
        infos = [CommitInfo(number, 1, 1, 0) for number in order]
        AveragingRule().aggregate(center, [rows[number].copy() for number in order], infos)
        sums.append(center)
    assert (sums[0] != sums[1]).any()


@pytest.mark.parametrize(("quorum", "expected"), [(1.0, 137 / 60), (0.8, 137 / 60 - 1)])
@pytest.mark.full
def test_the_first_round_waits_as_long_as_order_statistics_say(quorum, expected):
    """Exponential times of mean 1: ``H_5`` for 5 of 5, ``H_5 - H_1`` for 4 of 5."""
    waits = []
    for seed in range(300):
        simulation = build(
            AveragingRule(), np.zeros((5, 1, 1)), quorum=quorum, times="exponential", seed=seed
        )
        while simulation.version == 0:
            simulation.advance()
        waits.append(simulation.now)
    error = np.std(waits) / np.sqrt(len(waits))
    assert abs(np.mean(waits) - expected) < 4 * error
    assert error < 0.08

"""Gradient energy matching."""

import numpy as np
import pytest

from distkeras_grid.rules import CommitInfo, EnergyMatchingRule
from tests.invariants.quadratics import ConstantGradient, build, fixed, trained


def alone(steps, **parameters):
    """One worker on a constant gradient of 1, rate 1; returns how each commit moved the center."""
    rule = EnergyMatchingRule(largest_scale=100.0, **parameters)
    learner = ConstantGradient(np.array([0.0]), 1.0)
    simulation = build(rule, [fixed([0.0], steps)], learners=[learner])
    centers = [0.0]
    while simulation.advance():
        if simulation.version == len(centers):
            centers.append(simulation.center[0])
    return np.diff(centers)


def momentum_sgd(steps, momentum):
    """The steps of momentum SGD on a constant gradient of 1, rate 1."""
    return -(1 - momentum ** np.arange(1, steps + 1)) / (1 - momentum)


@pytest.mark.parametrize("workers", [1, 3])
def test_G1_the_first_exchange_is_a_step_of_sgd(workers):
    """``float32``, where adding epsilon to a gradient of 1 changes nothing."""
    start = np.array([8.0, -4.0], np.float32)
    simulation = build(
        EnergyMatchingRule(), [fixed([0.0, 0.0], 1)] * workers, start=start, dtype=np.float32
    )
    while simulation.version == 0:
        simulation.advance()
    assert simulation.center.tolist() == [4.0, -2.0]


def test_G2_alone_it_is_momentum_sgd_where_its_own_commits_are_left_out():
    found = alone(40, exclude_own_commit=True)
    np.testing.assert_allclose(found, momentum_sgd(40, 0.9), rtol=1e-11)


def test_G2_the_sign_is_that_of_the_step():
    rule = EnergyMatchingRule(momentum=0.5, exclude_own_commit=True)
    center, memory = np.zeros(1), [np.array([8.0]), np.zeros(1)]
    rule.fold(center, np.array([-2.0]), CommitInfo(0, 1, 1, 0), memory)
    np.testing.assert_allclose(center, [-2.0], rtol=1e-11)
    assert memory[0] == 2.0


def test_G3_as_printed_a_worker_alone_counts_its_own_commits():
    """``u_t = m_t - u_(t-1)``: on average half of the momentum."""
    found = alone(200)
    proxy = momentum_sgd(200, 0.9)
    np.testing.assert_allclose(found[1:], proxy[1:] - found[:-1], rtol=1e-9)
    np.testing.assert_allclose(found[-100:].mean(), -5.0, rtol=1e-3)


def test_G4_a_commit_is_clipped_to_between_nothing_and_five_steps():
    rng = np.random.default_rng(0)
    simulation = build(
        EnergyMatchingRule(kappa=2.0),
        rng.normal(size=(6, 30, 20)),
        start=np.zeros(20),
        rate=0.3,
        times="exponential",
    )
    scales, version, before = [], 0, simulation.center
    while simulation.advance():
        if simulation.version > version:
            worker = simulation.history.records[-1].worker
            scales.append((simulation.center - before) / simulation.learners[worker].last)
            version, before = simulation.version, simulation.center
    assert len(scales) == 180
    found = np.array(scales)
    assert found.min() >= 0.0
    assert found.max() <= 5.0 + 1e-6
    assert (found == 0.0).any(), "the lower end is met"
    assert (found > 4.999).any(), "and the upper one"


def test_G5_a_commit_is_nothing_where_the_center_has_moved_by_the_momentum_or_more():
    rule = EnergyMatchingRule(momentum=0.5)
    center = np.array([0.5, 1.0, 3.0, -3.0])
    before, memory = center.copy(), [np.zeros(4), np.zeros(4)]
    rule.fold(center, np.ones(4), CommitInfo(0, 1, 1, 0), memory)
    moved = center - before
    assert moved[1:].tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(moved[0], 0.5, rtol=1e-11)


def test_G5_the_server_remembers_momentum_and_start_of_each_worker():
    """Two workers in turns, against the printed algorithm."""
    targets = (8.0, -8.0)
    found = trained(
        EnergyMatchingRule(momentum=0.5), [fixed([target], 3) for target in targets], rate=0.25
    )
    center, pulled, momentum, seen = 0.0, [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    for _ in range(3):
        for worker, target in enumerate(targets):
            d = -0.25 * (pulled[worker] - target)
            momentum[worker] = 0.5 * momentum[worker] + d
            shift = abs(center - seen[worker])
            scale = np.clip((abs(momentum[worker]) - shift) / (abs(d) + 1e-12), 0, 5)
            seen[worker] = center
            center += scale * d
            pulled[worker] = center
    np.testing.assert_allclose(found.center[0], center, rtol=1e-14)

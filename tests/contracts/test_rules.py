"""What holds for every registered rule."""

import json

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.rules import (
    RULES,
    AsynchronousRule,
    CommitInfo,
    LocalSteps,
    apply_reply,
    build_rule,
    compute_commit,
    finite_checks,
)
from distkeras_grid.weights import sections_of_sizes

PARAMETERS = {
    "adagrad": {"rate": 0.25},
    "elastic": {"alpha": 0.25},
    "elastic_momentum": {"alpha": 0.25},
    "elastic_round": {"alpha": 0.25},
}
TRAINABLE, SIZE = 150_000, 290_000  # more than one chunk of trainable and statistics
SECTIONS = sections_of_sizes(TRAINABLE, 140_000)


def built():
    return [pytest.param(build_rule(name, PARAMETERS.get(name, {})), id=name) for name in RULES]


def random_vector(seed):
    return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def trained(rule, before, change):
    """What `after` holds when the window has changed the weights by `change`."""
    gradients = rule.traits.local_steps in (LocalSteps.GRADIENT, LocalSteps.NONE)
    after = change.copy() if gradients else before + change
    after[TRAINABLE:] = before[TRAINABLE:] + change[TRAINABLE:]
    return after


def exchange(rule, vector, before, after, workers=1):
    """One exchange of one worker; returns what its next window starts from."""
    center = Center(rule, vector, SECTIONS, workers)
    payload, start = np.empty_like(vector), np.empty_like(vector)
    center.on_join(0, start)
    compute_commit(rule, SECTIONS, before, after, 3, payload)
    info = CommitInfo(seat=0, steps=3, samples=5, staleness=0)
    if isinstance(rule, AsynchronousRule):
        center.fold(payload, info)
    else:
        center.aggregate([payload], [info])
    apply_reply(rule, SECTIONS, after, payload, start)
    if rule.traits.steps_on_workers:  # by SGD with rate 1
        start[:TRAINABLE] = before[:TRAINABLE] - start[:TRAINABLE]
    return start


@pytest.mark.parametrize("rule", built())
def test_round_trip_by_name_and_parameters(rule):
    assert build_rule(rule.name, json.loads(json.dumps(rule.parameters()))) == rule


@pytest.mark.parametrize("rule", built())
def test_nothing_trained_changes_nothing(rule):
    """Center and worker agree and no gradient came: a fixed point, bit for bit."""
    center = random_vector(0)
    after = trained(rule, random_vector(0), np.zeros(SIZE, np.float32))
    start = exchange(rule, center, random_vector(0), after, workers=4)
    np.testing.assert_array_equal(center, random_vector(0))
    np.testing.assert_array_equal(start, random_vector(0))


@pytest.mark.parametrize("rule", built())
def test_inputs_of_the_worker_side_are_left_alone(rule):
    before, after = random_vector(1), random_vector(2)
    exchange(rule, random_vector(1), before, after)
    np.testing.assert_array_equal(before, random_vector(1))
    np.testing.assert_array_equal(after, random_vector(2))


@pytest.mark.parametrize("rule", built())
def test_folding_by_chunks_is_folding_at_once(rule, monkeypatch):
    chunked, whole = random_vector(3), random_vector(3)
    starts = [exchange(rule, chunked, random_vector(3), random_vector(4))]
    monkeypatch.setattr(finite_checks, "CHUNK", SIZE)
    starts.append(exchange(rule, whole, random_vector(3), random_vector(4)))
    np.testing.assert_array_equal(chunked, whole)
    np.testing.assert_array_equal(*starts)


@pytest.mark.parametrize("rule", built())
def test_statistics_are_never_summed(rule):
    """Those of one worker replace the center's, whatever happens to the trainable part."""
    center, after = random_vector(5), random_vector(6)
    start = exchange(rule, center, random_vector(5), after)
    np.testing.assert_array_equal(center[TRAINABLE:], after[TRAINABLE:])
    np.testing.assert_array_equal(start[TRAINABLE:], after[TRAINABLE:])


@pytest.mark.parametrize("rule", built())
def test_a_reply_may_be_applied_in_place(rule):
    after, reply = random_vector(7), random_vector(8)
    out = np.empty_like(after)
    apply_reply(rule, SECTIONS, after, reply, out)
    for target in (after.copy(), reply.copy()):
        sources = (target, reply) if np.array_equal(target, after) else (after, target)
        apply_reply(rule, SECTIONS, *sources, target)
        np.testing.assert_array_equal(target, out)


@pytest.mark.parametrize("rule", built())
def test_repeated_commits_leave_the_center_alone(rule):
    center, payload = Center(rule, random_vector(9), SECTIONS, 1), random_vector(10)
    center.repeat(payload, 0)
    np.testing.assert_array_equal(center.vector, random_vector(9))
    start = np.empty_like(payload)
    apply_reply(rule, SECTIONS, random_vector(10), payload, start)
    worker = random_vector(10) if rule.traits.keeps_weights else random_vector(9)
    np.testing.assert_array_equal(start[:TRAINABLE], worker[:TRAINABLE])


def test_unknown_names_are_errors_with_a_hint():
    with pytest.raises(ConfigurationError, match="'downpour'"):
        build_rule("downpor", {})
    with pytest.raises(UnknownArgumentError, match="did you mean 'alpha'"):
        build_rule("elastic", {"alfa": 1})


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("elastic", {}),
        ("elastic", {"alpha": 1.5}),
        ("elastic", {"alpha": float("nan")}),
        ("elastic", {"alpha": "1"}),
        ("elastic_momentum", {"alpha": 0.1, "momentum": 1.0}),
        ("adagrad", {"rate": 0}),
        ("adagrad", {"rate": 1, "epsilon": -1}),
        ("distance", {"gamma": 0}),
        ("energy_matching", {"momentum": "0.9"}),
        ("energy_matching", {"kappa": float("inf")}),
        ("downpour", {"commit_scale": 0}),
        ("downpour", {"commit_scale": float("inf")}),
    ],
)
def test_parameters_out_of_range_are_refused(name, parameters):
    with pytest.raises(ConfigurationError):
        build_rule(name, parameters)


@pytest.mark.parametrize(
    ("rule", "moved"),
    [
        (build_rule("downpour", {}), 8),
        (build_rule("downpour", {"commit_scale": 0.5}), 4),
        (build_rule("accumulated_gradient", {}), 2),
        (build_rule("dynamic_rate", {}), 2),
        (build_rule("distance", {"gamma": 1.0}), 2),
    ],
)
def test_a_delta_rule_scales_a_change_by_8(rule, moved):
    """Of four steps, three commits late; nobody else has moved the center meanwhile."""
    center = Center(rule, np.full(1, 2, np.float32), sections_of_sizes(1), 1)
    before, payload = np.empty(1, np.float32), np.empty(1, np.float32)
    center.on_join(0, before)
    rule.compute_commit(before, before + 8, 4, payload)
    center.fold(payload, CommitInfo(seat=0, steps=4, samples=9, staleness=3))
    assert center.vector - 2 == payload - 2 == moved
    assert rule.traits.adds_commits

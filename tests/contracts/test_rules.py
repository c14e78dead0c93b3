"""What holds for every registered rule."""

import json

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.parameter_server import fold
from distkeras_grid.rules import (
    RULES,
    AsynchronousRule,
    CommitInfo,
    SynchronousRule,
    adopt_vector,
    build_rule,
    propose_vector,
)

PARAMETERS = {"elastic": {"alpha": 0.25}}
TRAINABLE, SIZE = 150_000, 200_000  # more than one chunk of each part


def built():
    return [pytest.param(build_rule(name, PARAMETERS.get(name, {})), id=name) for name in RULES]


def random_vector(seed):
    return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def exchange(rule, center, before, after, workers=1):
    """One exchange of one worker; returns what its next window starts from."""
    payload, start = np.empty_like(center), np.empty_like(center)
    propose_vector(rule, TRAINABLE, before, after, 3, payload)
    info = CommitInfo(seat=0, steps=3, samples=5, staleness=0)
    if isinstance(rule, AsynchronousRule):
        fold.fold_commit(rule, center, payload, TRAINABLE, info, workers)
    else:
        assert isinstance(rule, SynchronousRule)
        fold.combine_round(rule, center, [payload], TRAINABLE, [info])
    adopt_vector(rule, TRAINABLE, after, payload, start)
    return start


@pytest.mark.parametrize("rule", built())
def test_round_trip_by_name_and_parameters(rule):
    assert build_rule(rule.name, json.loads(json.dumps(rule.parameters()))) == rule


@pytest.mark.parametrize("rule", built())
def test_nothing_trained_changes_nothing(rule):
    """Center and worker agree and no gradient came: a fixed point, bit for bit."""
    center = random_vector(0)
    start = exchange(rule, center, random_vector(0), random_vector(0), workers=4)
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
    monkeypatch.setattr(fold, "CHUNK", SIZE)
    starts.append(exchange(rule, whole, random_vector(3), random_vector(4)))
    np.testing.assert_array_equal(chunked, whole)
    np.testing.assert_array_equal(*starts)


@pytest.mark.parametrize("rule", built())
def test_statistics_are_never_summed(rule):
    """Of one worker they replace the center's, whatever happens to the trainable part."""
    center, after = random_vector(5), random_vector(6)
    start = exchange(rule, center, random_vector(5), after)
    np.testing.assert_array_equal(center[TRAINABLE:], after[TRAINABLE:])
    np.testing.assert_array_equal(start[TRAINABLE:], after[TRAINABLE:])


@pytest.mark.parametrize("rule", built())
def test_adopt_may_work_in_place(rule):
    after, reply = random_vector(7), random_vector(8)
    out = np.empty_like(after)
    adopt_vector(rule, TRAINABLE, after, reply, out)
    for target in (after.copy(), reply.copy()):
        sources = (target, reply) if np.array_equal(target, after) else (after, target)
        adopt_vector(rule, TRAINABLE, *sources, target)
        np.testing.assert_array_equal(target, out)


@pytest.mark.parametrize("rule", built())
def test_repeated_commits_leave_the_center_alone(rule):
    if isinstance(rule, AsynchronousRule):
        center, payload = random_vector(9), random_vector(10)
        fold.repeat_reply(rule, center, payload, TRAINABLE)
        np.testing.assert_array_equal(center, random_vector(9))
        start = np.empty_like(center)
        adopt_vector(rule, TRAINABLE, random_vector(10), payload, start)
        worker = random_vector(10) if rule.empty_reply or rule.name == "elastic" else center
        np.testing.assert_array_equal(start[:TRAINABLE], worker[:TRAINABLE])


def test_unknown_names_are_errors_with_a_hint():
    with pytest.raises(ConfigurationError, match="did you mean 'downpour'"):
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
        ("downpour", {"commit_scale": 0}),
        ("downpour", {"commit_scale": float("inf")}),
    ],
)
def test_parameters_out_of_range_are_refused(name, parameters):
    with pytest.raises(ConfigurationError):
        build_rule(name, parameters)

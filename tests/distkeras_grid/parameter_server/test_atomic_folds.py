"""A fold is whole or not at all, and the center stays finite."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkeras_grid.errors import NonFiniteCenterError, ParameterServerError
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.messages import (
    BeginCheckpoint,
    FetchCenter,
    Ready,
    WindowCommit,
    WorkerEnd,
)
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    JoinRequest,
    ReceivedMessage,
)
from distkeras_grid.rules import (
    RULES,
    AsynchronousRule,
    AveragingRule,
    CommitInfo,
    DownpourRule,
    SynchronousRule,
    build_rule,
)
from distkeras_grid.rules.finite_checks import CHUNK, is_finite
from distkeras_grid.weights import sections_of_sizes
from tests.specs import make_spec

SIZES = (2 * CHUNK + 3, CHUNK + 1)
SECTIONS = sections_of_sizes(*SIZES)
SIZE = sum(SIZES)
INFO = CommitInfo(seat=0, steps=1, samples=1, staleness=0)
HUGE = 3e38
PARAMETERS = {
    "adagrad": {"rate": 0.25},
    "elastic": {"alpha": 0.25},
    "elastic_momentum": {"alpha": 0.25},
    "elastic_round": {"alpha": 1.0},
}


@dataclass(frozen=True)
class MakesNaN(DownpourRule):
    name: ClassVar[str] = "makes_nan"

    def fold(self, center, payload, commit, memory):  # noqa: ARG002
        center[-1] = np.nan


@dataclass(frozen=True)
class Doubling(DownpourRule):
    """Can make infinity of a giant in the center, whatever the commit is."""

    name: ClassVar[str] = "doubling"

    def fold(self, center, payload, commit, memory):  # noqa: ARG002
        with np.errstate(over="ignore"):
            center *= 2


@dataclass(frozen=True)
class DoublingRound(AveragingRule):
    name: ClassVar[str] = "doubling_round"

    def aggregate(self, center, payloads, commits):  # noqa: ARG002
        with np.errstate(over="ignore"):
            center *= 2


def built(kind):
    rules = [build_rule(name, PARAMETERS.get(name, {})) for name in RULES]
    return [pytest.param(rule, id=rule.name) for rule in rules if isinstance(rule, kind)]


def constant(value):
    return np.full(SIZE, value, np.float32)


def same(state, other):
    pairs = [(state["centers"], other["centers"]), (state["shared"], other["shared"])]
    pairs += list(zip(state["own"], other["own"], strict=True))
    return all(
        np.array_equal(a, b, equal_nan=True)
        for left, right in pairs
        for a, b in zip(left, right, strict=True)
    )


def test_a_rule_that_makes_nan_of_ordinary_numbers_has_failed():
    center = Center(MakesNaN(), constant(0), SECTIONS, 1)
    with pytest.raises(ArithmeticError, match="makes_nan"):
        center.fold(constant(1), INFO)


GIANT = 2e38


def reached(center, vector):
    center.replace(vector)
    return center


def restored(center, vector):
    state = reached(center, vector).to_state()
    return Center.from_state(center._rule, SECTIONS, 1, state)


def doubled(center, vector):
    center.replace(vector / 2)
    change(center)
    return center


def change(center):
    """Fold a commit, or a round of one, of ordinary numbers."""
    if isinstance(center._rule, SynchronousRule):
        center.aggregate([constant(1)], [INFO])
    else:
        center.fold(constant(1), INFO)


@pytest.mark.parametrize("rule", [Doubling(), DoublingRound()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("place", [0, CHUNK, 2 * CHUNK + 2])
@pytest.mark.parametrize("come", [reached, restored, doubled])
def test_a_giant_in_the_center_is_remembered_however_it_came_there(rule, place, come):
    """A copy is kept of such a center: the fold is refused, and the rule has not failed."""
    vector = constant(0)
    vector[place] = GIANT
    center = come(Center(rule, constant(0), SECTIONS, 1), vector)
    with pytest.raises(NonFiniteCenterError):
        change(center)
    np.testing.assert_array_equal(center.vector[: SIZES[0]], vector[: SIZES[0]])


@pytest.mark.parametrize("rule", [Doubling(), DoublingRound()], ids=lambda rule: rule.name)
def test_ordinary_numbers_may_become_giants(rule):
    center = Center(rule, constant(8e14), SECTIONS, 1)
    change(center)
    assert center.vector[0] == np.float32(1.6e15)


def test_a_repeat_replies_with_all_sections():
    center = Center(DownpourRule(), constant(3), SECTIONS, 1)
    payload = constant(1)
    center.repeat(payload, 0)
    assert set(payload) == {3.0}


def test_a_commit_that_is_not_finite_is_refused_by_the_center_itself():
    center = Center(DownpourRule(), constant(0), SECTIONS, 1)
    for bad in (np.nan, np.inf):
        payload = constant(1)
        payload[-1] = bad
        with pytest.raises(NonFiniteCenterError):
            center.fold(payload, INFO)
    assert not center.vector.any()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_the_mean_of_opposite_giants_is_finite(section):
    for seats, folded in ((2, [1.5e38]), (4, [2.25e38])):
        center = Center(DownpourRule(), constant(0), SECTIONS, seats)
        if section.policy == "average":
            center.vector[section.span] = HUGE
            center.replace(center.vector.copy())
            payload = constant(0)
            center.fold(payload, INFO)
            assert np.unique(center.vector[section.span]) == pytest.approx(folded)
            payload[section.span] = -HUGE
            center.fold(payload, INFO)
            assert is_finite(center.vector)
    center = Center(AveragingRule(), constant(0), SECTIONS, 2)
    payloads = [constant(0), constant(0)]
    payloads[0][section.span], payloads[1][section.span] = HUGE, -HUGE
    center.aggregate(payloads, [INFO, INFO])
    for vector in (center.vector, *payloads):
        np.testing.assert_array_equal(vector, 0)


def test_identical_giants_have_themselves_as_their_mean_bit_for_bit():
    random = np.random.default_rng(3)
    giant = (random.uniform(-1, 1, SIZE) * 3.4e38).astype(np.float32)
    center = Center(AveragingRule(), constant(0), SECTIONS, 3)
    infos = [CommitInfo(seat, 1, samples, 0) for seat, samples in enumerate((1, 3, 7))]
    center.aggregate([giant.copy() for _ in infos], infos)
    np.testing.assert_array_equal(center.vector, giant)


giants = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.sampled_from([HUGE, -HUGE, 1e20, -1e16, 1.0])),
    max_size=3,
)


def with_giants(places):
    vector = np.ones(SIZE, np.float32)
    for place, value in places:
        vector[place] = value
    return vector


@pytest.mark.parametrize("rule", built(AsynchronousRule))
@settings(max_examples=20, deadline=None)
@given(commits=st.lists(st.tuples(st.integers(0, 1), giants), min_size=1, max_size=5))
def test_commits_fold_wholly_into_a_finite_center_or_change_nothing(rule, commits):
    center, out = Center(rule, with_giants([]), SECTIONS, 2), constant(0)
    for seat in (0, 1):
        center.on_join(seat, out)
    for seat, places in commits:
        before = center.to_state()
        try:
            center.fold(with_giants(places), CommitInfo(seat, 2, 3, 1))
        except NonFiniteCenterError:
            assert same(center.to_state(), before)
        for vectors in [*center.to_state()["own"], *map(center.of, (0, 1))]:
            assert all(map(is_finite, vectors if isinstance(vectors, list) else [vectors]))


@pytest.mark.parametrize("rule", built(SynchronousRule))
@settings(max_examples=20, deadline=None)
@given(rounds=st.lists(st.tuples(giants, giants), min_size=1, max_size=4))
def test_rounds_fold_wholly_into_a_finite_center_or_change_nothing(rule, rounds):
    center = Center(rule, with_giants([]), SECTIONS, 2)
    infos = [CommitInfo(seat, 2, 3, 0) for seat in (0, 1)]
    for places in rounds:
        before, payloads = center.to_state(), [with_giants(each) for each in places]
        try:
            center.aggregate(payloads, infos)
            assert all(map(is_finite, payloads))
        except NonFiniteCenterError:
            assert rule.name == "elastic_round", "a mean of finite numbers is finite"
            assert same(center.to_state(), before)
        assert is_finite(center.vector)


def test_after_a_defect_nobody_is_answered_any_more(monkeypatch):
    """A commit may be in the center, and not in the ledger."""
    core = ServerCore(make_spec(workers=2, rows=12), np.zeros(8, np.float32))
    first, second = (core.handle(JoinRequest(seat, 0), 0.0)[0].session for seat in (0, 1))
    for session in (first, second):
        core.handle(ReceivedMessage(session, Ready(6, 0.0), np.empty(8, np.float32)), 0.0)

    def fold(*_):
        raise LookupError("my own mistake")

    monkeypatch.setattr(core.center, "fold", fold)
    commit = WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0.0, 0.0)
    with pytest.raises(LookupError):
        core.handle(ReceivedMessage(first, commit, np.ones(8, np.float32)), 0.0)
    assert "my own mistake" in core.failure
    for event in (
        ReceivedMessage(DRIVER, FetchCenter(None, 0)),
        ReceivedMessage(DRIVER, BeginCheckpoint(at_once=True)),
        ReceivedMessage(second, WorkerEnd()),
        JoinRequest(0, 1),
    ):
        with pytest.raises(ParameterServerError):
            core.handle(event, 0.0)

"""Judges of commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.judges import (
    RECENT,
    Judge,
    Measure,
    Outliers,
    Seen,
    build_judge,
    judge_of,
    judge_spec,
)


def seen(norm=2.0, loss=1.0, statistics=0.5, count=20):
    found = Seen()
    for _ in range(count):
        found.add(Measure(loss, norm, statistics))
    return found


@pytest.mark.parametrize(
    ("commit", "word"),
    [
        (Measure(1.0, 2.0, 0.5), ""),
        (Measure(1.0, 19.0, 4.0), ""),
        (Measure(9.0, 2.0, 0.5), ""),
        (Measure(1.0, 21.0, 0.5), "norm"),
        (Measure(1.0, float("inf"), 0.5), "norm"),
        (Measure(11.0, 2.0, 0.5), "loss"),
        (Measure(1.0, 2.0, 6.0), "averaged"),
    ],
)
def test_a_commit_is_an_outlier_if_one_number_is_many_times_that_of_the_others(commit, word):
    (reason,) = Outliers().find([commit], seen())
    assert (word in reason) if word else reason == ""


def test_losses_near_zero_are_compared_with_the_highest():
    """A single wrong row among converged ones has a loss that is hundreds of times theirs."""
    told = seen(loss=2.3, count=1)
    for _ in range(RECENT):
        told.add(Measure(1e-4, 2.0, 0.5))
    assert len(told.recent) == RECENT
    assert Outliers().find([Measure(0.5, 2.0, 0.5)], told) == [""]
    assert Outliers().find([Measure(24.0, 2.0, 0.5)], told) != [""]


@pytest.mark.parametrize("healthy", [1, 2, 3])
def test_the_first_commits_are_compared_with_each_other(healthy):
    commits = [*[Measure(2.3, 1.0, 0.0)] * healthy, Measure(9e5, 1.0, 0.0)]
    reasons = Outliers().find(commits, Seen())
    assert [bool(reason) for reason in reasons] == [False] * healthy + [True]
    assert Outliers().find([Measure(9e5, 1.0, 0.0)], Seen()) == [""]


def test_a_change_that_is_not_known_is_not_compared():
    """Members of an ensemble begin with weights of their own."""
    first = [Measure(2.3, 1.0, 0.0), Measure(2.4, None, 0.0), Measure(9e5, None, 0.0)]
    assert [bool(each) for each in Outliers().find(first, Seen())] == [False, False, True]
    assert Outliers().find([Measure(2.3, 50.0, 0.0)], Seen([first[1]], 2.4)) == [""]


def test_nothing_is_compared_with_zero_or_with_a_negative_loss():
    told = seen(norm=0.0, loss=-1.0, statistics=0.0)
    assert Outliers().find([Measure(-0.1, 3.0, 1.0)], told) == [""]


@pytest.mark.parametrize(("cosine", "wrong"), [(None, False), (-0.4, False), (-0.6, True)])
def test_a_change_may_point_away_from_the_course(cosine, wrong):
    judge = Outliers(least_cosine=-0.5)
    assert judge.needs_course
    assert not Outliers().needs_course
    (reason,) = judge.find([Measure(1.0, 2.0, 0.5, cosine)], seen())
    assert bool(reason) == wrong


@pytest.mark.parametrize(
    "given",
    [
        {"factor": 1},
        {"factor": "10"},
        {"least_cosine": 2},
        {"least_cosine": "0"},
        {"on_outlier": "repeat"},
    ],
)
def test_parameters_out_of_range(given):
    with pytest.raises(ConfigurationError):
        Outliers(**given)


def test_a_judge_travels_by_name_and_parameters():
    judge = Outliers(on_outlier="stop", factor=20, least_cosine=-0.5)
    assert judge_of(judge_spec(judge)) == judge
    assert judge_of(judge_spec("outliers")) == Outliers()
    assert judge_of(judge_spec(None)) is None


def test_judges_that_are_not_known():
    @dataclass(frozen=True)
    class Mine(Judge):
        name: ClassVar[str] = "outliers"

        def find(self, commits, seen):  # noqa: ARG002
            return [""] * len(commits)

    for given in (Mine(), "mine", 7, Outliers):
        with pytest.raises(ConfigurationError):
            judge_spec(given)
    with pytest.raises(UnknownArgumentError, match="factor"):
        build_judge("outliers", {"facter": 3})

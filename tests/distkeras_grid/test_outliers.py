"""Outliers, and a function of the user's."""

import pickle

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, ValidateError
from distkeras_grid.outliers import (
    LONGEST_REASON,
    RECENT,
    CommitStatistics,
    RunningStatistics,
    ask,
    outlier,
)
from distkeras_grid.spec import Outliers


def seen(norm=2.0, loss=1.0, statistics=0.5, count=20):
    found = RunningStatistics()
    for _ in range(count):
        found.add(CommitStatistics(loss, norm, statistics))
    return found


def find(commit, told):
    return outlier(commit, [commit], told, factor=10.0)


@pytest.mark.parametrize(
    ("commit", "word"),
    [
        (CommitStatistics(1.0, 2.0, 0.5), ""),
        (CommitStatistics(1.0, 19.0, 4.0), ""),
        (CommitStatistics(9.0, 2.0, 0.5), ""),
        (CommitStatistics(1.0, 21.0, 0.5), "norm"),
        (CommitStatistics(1.0, float("inf"), 0.5), "norm"),
        (CommitStatistics(11.0, 2.0, 0.5), "loss"),
        (CommitStatistics(1.0, 2.0, 6.0), "averaged"),
    ],
)
def test_a_commit_is_an_outlier_if_one_number_is_many_times_that_of_the_others(commit, word):
    reason = find(commit, seen())
    assert (word in reason) if word else reason == ""


def test_losses_near_zero_are_compared_with_the_highest():
    """A single wrong row among converged ones has a loss that is hundreds of times theirs."""
    told = seen(loss=2.3, count=1)
    for _ in range(RECENT):
        told.add(CommitStatistics(1e-4, 2.0, 0.5))
    assert len(told.recent) == RECENT
    assert find(CommitStatistics(0.5, 2.0, 0.5), told) == ""
    assert find(CommitStatistics(24.0, 2.0, 0.5), told) != ""


@pytest.mark.parametrize("healthy", [1, 2, 3])
def test_commits_of_the_first_round_are_compared_with_each_other(healthy):
    commits = [*[CommitStatistics(2.3, 1.0, 0.0)] * healthy, CommitStatistics(9e5, 1.0, 0.0)]
    reasons = [outlier(each, commits, RunningStatistics(), 10.0) for each in commits]
    assert [bool(reason) for reason in reasons] == [False] * healthy + [True]
    assert find(CommitStatistics(9e5, 1.0, 0.0), RunningStatistics()) == "", (
        "alone, it has nothing to compare with"
    )


def test_a_change_that_is_not_known_is_not_compared():
    """Members of an ensemble begin with weights of their own."""
    first = [
        CommitStatistics(2.3, 1.0, 0.0),
        CommitStatistics(2.4, None, 0.0),
        CommitStatistics(9e5, None, 0.0),
    ]
    assert [bool(outlier(each, first, RunningStatistics(), 10.0)) for each in first] == [
        False,
        False,
        True,
    ]
    assert find(CommitStatistics(2.3, 50.0, 0.0), RunningStatistics([first[1]], 2.4)) == ""


def test_nothing_is_compared_with_zero_or_with_a_negative_loss():
    told = seen(norm=0.0, loss=-1.0, statistics=0.0)
    assert find(CommitStatistics(-0.1, 3.0, 1.0), told) == ""


@pytest.mark.parametrize(
    "given",
    [
        *({"factor": 1}, {"factor": "10"}, {"factor": True}, {"factor": float("nan")}),
        {"on_outlier": "refuse"},
    ],
)
def test_parameters_out_of_range(given):
    with pytest.raises(ConfigurationError, match=next(iter(given))):
        Outliers(**given)


def asked(validate, sent=None):
    return ask(validate, 0.5, {"accuracy": 0.75}, np.zeros(3) if sent is None else sent)


def test_a_function_of_the_users_sees_loss_metrics_and_what_is_sent():
    def told(loss, metrics, sent):
        return f"{loss} {metrics['accuracy']} {sent.tolist()}"

    assert asked(told) == "0.5 0.75 [0.0, 0.0, 0.0]"
    assert asked(lambda *_: None) == asked(lambda *_: "") == ""


def test_what_a_function_returns_is_kept_as_a_plain_text_that_can_be_sent():
    class Mine(str):
        __slots__ = ()

    found = asked(lambda *_: Mine("file \udcff"))
    assert (type(found), found) == (str, "file \\udcff")
    assert len(asked(lambda *_: "\udcff" * 5000)) == LONGEST_REASON


def spoils(loss, metrics, sent):
    sent[0] = np.inf


@pytest.mark.parametrize(
    ("validate", "said"),
    [
        (lambda loss, *_: loss.typo, "AttributeError"),
        (lambda *_: True, "TypeError: it returns a text, or None"),
        (lambda: None, "TypeError"),
        (spoils, "'spoils' .*ValueError"),
    ],
)
def test_a_function_that_fails_is_named_and_changes_nothing(validate, said):
    sent = np.zeros(3)
    with pytest.raises(ValidateError, match=said):
        asked(validate, sent)
    assert not sent.any()
    assert sent.flags.writeable


def test_its_error_survives_the_way_to_the_driver():
    error = pickle.loads(pickle.dumps(ValidateError.of("mine", ValueError("no"))))  # noqa: S301
    assert (error.function, error.error) == ("mine", "ValueError")
    assert str(ValidateError.of("mine", OSError("file \udcff"))).isascii()


def test_an_error_that_cannot_be_put_into_words_is_named():
    class Speechless(Exception):
        def __str__(self):
            raise RuntimeError

    error = ValidateError.of("mine", Speechless())
    assert str(error).endswith("failed with Speechless: it cannot be put into words.")

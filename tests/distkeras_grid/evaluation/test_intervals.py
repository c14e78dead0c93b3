from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.evaluation.intervals import Figure, Tallies, figures, student_t, with_intervals

# Labels 0 0 0 0 0 1 1 1 2 2, predictions 0 0 0 1 2 1 1 0 2 2.
CONFUSION = np.array([[3, 1, 1], [1, 2, 0], [0, 0, 2]])


def one_each(confusions):
    return np.asarray(confusions), np.ones(len(confusions), np.int64)


def test_the_figures_of_a_confusion_matrix():
    """Checked with scikit-learn 1.7: accuracy_score, balanced_accuracy_score and
    precision_recall_fscore_support of these ten."""
    found = figures(Tallies.of(CONFUSION[np.newaxis]))
    assert found["accuracy"] == pytest.approx(0.7)
    assert found["balanced"] == pytest.approx((0.6 + 2 / 3 + 1) / 3)
    np.testing.assert_allclose(found["precision"], [[0.75, 2 / 3, 2 / 3]])
    np.testing.assert_allclose(found["recall"], [[0.6, 2 / 3, 1.0]])
    np.testing.assert_allclose(found["f1"], [[2 / 3, 2 / 3, 0.8]])


def test_a_class_that_does_not_occur_has_no_recall_and_does_not_count_in_the_balanced_accuracy():
    found = figures(Tallies.of(np.array([[[4, 0, 1], [0, 5, 0], [0, 0, 0]]])))
    assert np.isnan(found["recall"][0, 2])
    assert found["precision"][0, 2] == 0
    assert found["f1"][0, 2] == 0
    assert found["balanced"] == pytest.approx(0.9)
    never = figures(Tallies.of(np.array([[[5, 0], [2, 0]]])))
    assert np.isnan(never["precision"][0, 1])


def test_groups_that_all_agree_give_no_interval():
    right = one_each([np.diag([3, 0]), np.diag([0, 4])])
    found = with_intervals(*right)
    assert found["accuracy"] == [Figure(1.0)]
    assert found["recall"] == [Figure(1.0), Figure(1.0)]


def test_a_figure_that_is_not_defined_has_no_value():
    (_, second) = with_intervals(*one_each([[[4, 0], [2, 0]]]))["precision"]
    assert second == Figure(None)


def test_a_class_of_one_group_has_no_interval_and_neither_has_the_mean_of_the_recalls():
    groups = [[[5, 3], [0, 0]], [[7, 1], [0, 0]], [[2, 1], [4, 9]]]
    found = with_intervals(*one_each(groups))
    assert found["recall"][0].low is not None
    assert found["recall"][1].low is None
    assert found["balanced"][0].low is None
    assert found["accuracy"][0].low is not None


def test_student():
    """Against scipy 1.17's scipy.stats.t.ppf(0.975, freedom)."""
    known = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 7: 2.3646, 20: 2.0860, 200: 1.9719}
    for freedom, quantile in known.items():
        assert student_t(freedom) == pytest.approx(quantile, rel=2e-3)


def test_kinds_of_equal_groups_count_as_if_they_were_listed():
    """Independent rows: the binomial distribution tells the interval."""
    kinds = np.array([[[1, 0], [0, 0]], [[0, 1], [0, 0]]])
    (found,) = with_intervals(kinds, np.array([80, 20]))["accuracy"]
    (listed,) = with_intervals(*one_each(kinds[[0] * 80 + [1] * 20]))["accuracy"]
    assert found == listed
    # The Wilson interval of 80 of 100, as statsmodels has it.
    assert (found.low, found.high) == pytest.approx((0.711, 0.867), abs=0.006)


def laboratory(random, count, kind):
    """Draw specimens: the confusion matrices of two classes in each."""
    rows = np.full(count, 40)
    if kind != "even":
        rows = np.maximum(3, random.lognormal(3.3, 0.8, count)).astype(int)
    share = np.full(count, 0.5)
    if kind == "pure":
        share = np.arange(count) % 2
    elif kind == "mixed":
        pure = (random.random(count) < 0.3).astype(float)
        share = np.where(random.random(count) < 0.4, random.random(count), pure)
    second = np.rint(rows * share).astype(int)
    right = random.binomial(rows - second, random.beta(6, 2, count))
    found = random.binomial(second, random.beta(3, 3, count))
    first = np.stack([right, rows - second - right], axis=1)
    return np.stack([first, np.stack([second - found, found], axis=1)], axis=1)


@pytest.mark.parametrize("kind", ["even", "mixed", "pure"])
@pytest.mark.parametrize("count", [4, 8, 20])
def test_intervals_hold_the_truth_as_often_as_they_say(kind, count):
    """500 laboratories; the truth is that of 200,000 specimens.

    The guide and the report say how often. Where a class hangs on few specimens, most figures of it
    have wider intervals than they need.
    """
    many = laboratory(np.random.default_rng(99), 200_000, kind)
    truth = {name: found[0] for name, found in figures(Tallies.of(many.sum(0)[None])).items()}
    held: dict[str, list[bool]] = {name: [] for name in truth}
    for trial in range(500):
        drawn = laboratory(np.random.default_rng(1000 * trial + count), count, kind)
        for name, found in with_intervals(*one_each(drawn)).items():
            if found[-1].low is not None:
                held[name].append(found[-1].low <= truth[name][-1] <= found[-1].high)
    shares = {name: np.mean(each) for name, each in held.items()}
    assert 0.91 <= shares["accuracy"] <= 0.98, shares
    assert all(share >= 0.91 for share in shares.values()), shares

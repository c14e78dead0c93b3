from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.evaluation.bootstrap import (
    Figure,
    Tallies,
    figures,
    strata,
    with_intervals,
)

# Labels 0 0 0 0 0 1 1 1 2 2, predictions 0 0 0 1 2 1 1 0 2 2.
CONFUSION = np.array([[3, 1, 1], [1, 2, 0], [0, 0, 2]])


def one_each(confusions):
    return np.asarray(confusions), np.ones(len(confusions), np.int64)


def test_the_figures_of_a_confusion_matrix():
    """Checked with scikit-learn 1.7: accuracy_score, balanced_accuracy_score and
    precision_recall_fscore_support of these ten."""
    found = figures(Tallies.of(CONFUSION[np.newaxis]))
    assert found["accuracy"] == pytest.approx([0.7])
    assert found["balanced"] == pytest.approx([(0.6 + 2 / 3 + 1) / 3])
    np.testing.assert_allclose(found["precision"], [[0.75, 2 / 3, 2 / 3]])
    np.testing.assert_allclose(found["recall"], [[0.6, 2 / 3, 1.0]])
    np.testing.assert_allclose(found["f1"], [[2 / 3, 2 / 3, 0.8]])


def test_a_class_that_does_not_occur_has_no_recall_and_does_not_count_in_the_balanced_accuracy():
    found = figures(Tallies.of(np.array([[[4, 0, 1], [0, 5, 0], [0, 0, 0]]])))
    assert np.isnan(found["recall"][0, 2])
    assert found["precision"][0, 2] == 0
    assert found["f1"][0, 2] == 0
    assert found["balanced"] == pytest.approx([0.9])
    never = figures(Tallies.of(np.array([[[5, 0], [2, 0]]])))
    assert np.isnan(never["precision"][0, 1])


def test_clusters_weigh_as_often_as_they_are_drawn():
    matrices = np.array([[[1, 2], [0, 3]], [[4, 0], [1, 1]]])
    weights = np.array([[2.0, 0.0], [1.0, 3.0]])
    of_sums = figures(Tallies.of((weights @ matrices.reshape(2, 4)).reshape(2, 2, 2)))
    for name, values in figures(Tallies.of(matrices).weighed(weights)).items():
        np.testing.assert_array_equal(values, of_sums[name])


def test_a_seed_repeats_the_intervals_and_another_does_not():
    clusters = one_each(np.random.default_rng(1).integers(0, 9, (12, 2, 2)))
    first = with_intervals(*clusters, resamples=300, seed=5)
    assert first == with_intervals(*clusters, resamples=300, seed=5)
    assert first != with_intervals(*clusters, resamples=300, seed=6)


def test_resamples_that_all_agree_give_no_interval():
    right = one_each([np.diag([3, 0]), np.diag([0, 4])])
    found = with_intervals(*right, resamples=50, seed=0)
    assert found["accuracy"] == [Figure(1.0)]
    assert found["recall"] == [Figure(1.0), Figure(1.0)]


def test_a_figure_that_is_not_defined_has_no_value():
    (_, second) = with_intervals(*one_each([[[4, 0], [2, 0]]]), resamples=9, seed=0)["precision"]
    assert second == Figure(None)


def test_each_class_is_drawn_as_often_as_it_is_there():
    """With 2 clusters of 6 in class 1, drawing from all would miss it in 9 of 100 resamples."""
    clusters = np.array(
        [np.array([[9, 1], [0, 0]])] * 4 + [np.array([[0, 0], [1, n]]) for n in (8, 9)]
    )
    assert [found.tolist() for found in strata(Tallies.of(clusters))] == [[4, 5], [0, 1, 2, 3]]
    found = with_intervals(*one_each(clusters), resamples=500, seed=0)
    assert found["recall"][1].low == pytest.approx(8 / 9)
    assert found["recall"][1].high == pytest.approx(9 / 10)
    assert found["precision"][1].low > 0.7


def test_kinds_of_equal_clusters_are_drawn_as_if_they_were_listed():
    """Independent rows: the binomial distribution tells the interval."""
    kinds = np.array([[[1, 0], [0, 0]], [[0, 1], [0, 0]]])
    (found,) = with_intervals(kinds, np.array([80, 20]), resamples=4000, seed=0)["accuracy"]
    spread = 1.96 * np.sqrt(0.8 * 0.2 / 100)
    assert found.value == 0.8
    assert found.low == pytest.approx(0.8 - spread, abs=0.012)
    assert found.high == pytest.approx(0.8 + spread, abs=0.012)


def test_intervals_of_clusters_hold_the_truth_where_those_of_rows_do_not():
    """30 images of 50 tiles; how many are right differs from image to image (0.8 in the mean)."""
    random = np.random.default_rng(0)
    held, held_by_rows = 0, 0
    for trial in range(200):
        right = random.binomial(50, random.beta(8, 2, size=30))
        clusters = np.zeros((30, 1, 2), np.int64)
        clusters[:, 0, 0], clusters[:, 0, 1] = right, 50 - right
        clusters = np.pad(clusters, [(0, 0), (0, 1), (0, 0)])
        (found,) = with_intervals(*one_each(clusters), resamples=200, seed=trial)["accuracy"]
        held += found.low <= 0.8 <= found.high
        kinds = np.array([[[1, 0], [0, 0]], [[0, 1], [0, 0]]])
        counts = clusters.sum(axis=0)[0]
        (rows,) = with_intervals(kinds, counts, resamples=200, seed=trial)["accuracy"]
        held_by_rows += rows.low <= 0.8 <= rows.high
    assert 0.88 <= held / 200 <= 0.99
    assert held_by_rows / 200 < 0.7


@pytest.mark.parametrize("wrong", [{"resamples": 0}, {"seed": -1}])
def test_numbers_that_no_bootstrap_can_be_made_with_are_refused(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        with_intervals(*one_each([np.eye(2, dtype=int)]), **{"resamples": 10, "seed": 0, **wrong})

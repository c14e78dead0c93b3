import numpy as np
import pytest

from distkeras_grid.evaluation.intervals import Figure, share_of_right, student_t


def of_groups(right, rows):
    return share_of_right(np.asarray(right), np.asarray(rows), np.ones(len(rows), np.int64))


def test_one_group_or_groups_that_all_agree_give_no_interval():
    assert of_groups([3, 4], [3, 4]) == Figure(1.0)
    assert of_groups([0, 0], [3, 4]) == Figure(0.0)
    assert of_groups([3], [4]) == Figure(0.75)
    assert of_groups([3, 3], [4, 4]) == Figure(0.75)


def test_student():
    """Against scipy 1.17's scipy.stats.t.ppf(0.975, freedom)."""
    known = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 7: 2.3646, 20: 2.0860, 200: 1.9719}
    for freedom, quantile in known.items():
        assert student_t(freedom) == pytest.approx(quantile, rel=2e-3)


def test_kinds_of_equal_groups_count_as_if_they_were_listed():
    """Independent rows: the binomial distribution tells the interval."""
    found = share_of_right(np.array([1, 0]), np.ones(2, np.int64), np.array([80, 20]))
    listed = of_groups([1] * 80 + [0] * 20, [1] * 100)
    assert (found.low, found.high) == pytest.approx((listed.low, listed.high))
    # The Wilson interval of 80 of 100, as statsmodels has it.
    assert (found.low, found.high) == pytest.approx((0.711, 0.867), abs=0.006)


def laboratory(random, count, kind):
    """Draw specimens of equal or of very different size: the right rows and all rows of each."""
    rows = np.full(count, 40)
    if kind != "even":
        rows = np.maximum(3, random.lognormal(3.3, 0.8, count)).astype(int)
    return random.binomial(rows, random.beta(5, 2.5, count)), rows


@pytest.mark.parametrize("kind", ["even", "uneven"])
@pytest.mark.parametrize("count", [4, 8, 20])
def test_intervals_hold_the_truth_as_often_as_they_say(kind, count):
    """500 laboratories; the truth is that of 200,000 specimens."""
    right, rows = laboratory(np.random.default_rng(99), 200_000, kind)
    truth, held = right.sum() / rows.sum(), []
    for trial in range(500):
        found = of_groups(*laboratory(np.random.default_rng(1000 * trial + count), count, kind))
        if found.low is not None:
            held.append(found.low <= truth <= found.high)
    assert 0.91 <= np.mean(held) <= 0.98

import numpy as np
import pytest

from distkeras_grid.errors import ParameterServerError
from distkeras_grid.parameter_server.center import CHUNK, Center, is_finite
from distkeras_grid.rules import AveragingRule, CommitInfo, DistanceRule, DownpourRule


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, CHUNK - 1, CHUNK, 2 * CHUNK + 4])
def test_one_bad_number_anywhere_is_found(value, position):
    vector = np.ones(2 * CHUNK + 5, np.float32)
    assert is_finite(vector)
    vector[position] = value
    assert not is_finite(vector)


def test_opposite_infinities_do_not_cancel():
    assert not is_finite(np.array([np.inf, -np.inf], np.float32))


def test_huge_finite_numbers_are_finite():
    assert is_finite(np.full(1000, 3e38, np.float32))


def test_the_statistics_have_their_own_arithmetic():
    center = Center(DownpourRule(), np.array([1, 1], np.float32), 1, seats=4)
    payload = np.array([5, 5], np.float32)
    center.fold(payload, CommitInfo(0, 1, 1, 0))
    assert center.vector.tolist() == payload.tolist() == [6, 2]


def test_a_round_gives_everyone_the_new_center():
    center = Center(AveragingRule(), np.zeros(3 * CHUNK + 1, np.float32), 2 * CHUNK, seats=2)
    payloads = [np.full_like(center.vector, value) for value in (1, 5)]
    center.combine(payloads, [CommitInfo(0, 1, 3, 0), CommitInfo(1, 1, 1, 0)])
    for vector in (center.vector, *payloads):
        np.testing.assert_array_equal(vector, 2)


def test_each_seat_has_a_memory_of_its_own_and_a_start_or_a_repeat_renews_it():
    """The distance of a commit counts from the center that its own worker was given last."""
    center = Center(DistanceRule(gamma=1.0), np.zeros(2, np.float32), 2, seats=2)
    out = np.empty(2, np.float32)

    def commit(seat):
        payload = np.ones(2, np.float32)
        center.fold(payload, CommitInfo(seat, 1, 1, 0))
        return float(center.vector[0])

    for seat in (0, 1):
        center.greet(seat, out)
    assert commit(0) == 1.0
    assert commit(0) == 2.0, "nobody else has moved"
    assert commit(1) == pytest.approx(2 + 1 / (1 + 2**2)), "two away from where it started"
    center.repeat(out, 0)
    assert commit(0) == pytest.approx(3.2), "told of the center once more, it is at no distance"
    center.greet(1, out)
    assert commit(1) == pytest.approx(4.2)


def test_commits_and_rounds_are_not_taken_for_each_other():
    vector = np.zeros(2, np.float32)
    with pytest.raises(ParameterServerError, match="'averaging' folds rounds"):
        Center(AveragingRule(), vector, 2, 1).fold(vector, CommitInfo(0, 1, 1, 0))
    with pytest.raises(ParameterServerError, match="'downpour' folds commits"):
        Center(DownpourRule(), vector, 2, 1).combine([vector], [CommitInfo(0, 1, 1, 0)])

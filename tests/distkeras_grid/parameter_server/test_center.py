import numpy as np
import pytest

from distkeras_grid.errors import DataError, ParameterServerError
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.rules import (
    AveragingRule,
    CommitInfo,
    DistanceRule,
    DownpourRule,
    IndependentRule,
)
from distkeras_grid.rules.finite_checks import CHUNK, is_finite
from distkeras_grid.weights import sections_of_sizes


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, CHUNK - 1, CHUNK, 2 * CHUNK + 4])
def test_one_bad_number_anywhere_is_found(value, position):
    vector = np.ones(2 * CHUNK + 5, np.float32)
    assert is_finite(vector)
    vector[position] = value
    assert not is_finite(vector)


def test_the_statistics_have_their_own_arithmetic():
    center = Center(DownpourRule(), np.array([1, 1], np.float32), sections_of_sizes(1, 1), seats=4)
    payload = np.array([5, 5], np.float32)
    center.fold(payload, CommitInfo(0, 1, 1, 0))
    assert center.vector.tolist() == payload.tolist() == [6, 2]


def test_each_seat_has_a_memory_of_its_own_and_a_start_or_a_repeat_renews_it():
    """The distance of a commit counts from the center that its own worker was given last."""
    center = Center(DistanceRule(gamma=1.0), np.zeros(2, np.float32), sections_of_sizes(2), seats=2)
    out = np.empty(2, np.float32)

    def commit(seat):
        payload = np.ones(2, np.float32)
        center.fold(payload, CommitInfo(seat, 1, 1, 0))
        return float(center.vector[0])

    for seat in (0, 1):
        center.on_join(seat, out)
    assert commit(0) == 1.0
    assert commit(0) == 2.0, "nobody else has moved"
    assert commit(1) == pytest.approx(2 + 1 / (1 + 2**2)), "two away from where it started"
    center.repeat(out, 0)
    assert commit(0) == pytest.approx(3.2), "told of the center once more, it is at no distance"
    center.on_join(1, out)
    assert commit(1) == pytest.approx(4.2)


@pytest.mark.parametrize("rule", [DistanceRule(), IndependentRule()])
def test_a_center_that_was_saved_goes_on_as_if_nothing_had_been(rule):
    sections = sections_of_sizes(3, 2)
    center, out = Center(rule, np.arange(5, dtype=np.float32), sections, 2), np.empty(5, "f")
    for seat in (0, 1):
        center.on_join(seat, out)
    center.fold(np.ones(5, np.float32), CommitInfo(0, 1, 1, 0))
    state = center.to_state()
    both = [center, Center.from_state(rule, sections, 2, state)]
    for seat in (1, 0, 1):
        payloads = [np.full(5, 2, np.float32) for _ in both]
        for each, payload in zip(both, payloads, strict=True):
            each.fold(payload, CommitInfo(seat, 1, 1, 0))
        np.testing.assert_array_equal(*payloads)
        np.testing.assert_array_equal(*(each.of(seat) for each in both))
    again = Center.from_state(rule, sections, 2, state)
    assert not np.array_equal(again.vector, center.vector), "the state is a copy"


def test_the_state_of_another_center_is_refused():
    state = Center(DownpourRule(), np.zeros(3, np.float32), sections_of_sizes(3), 2).to_state()
    with pytest.raises(DataError):
        Center.from_state(DownpourRule(), sections_of_sizes(2), 2, state)
    state = Center(DistanceRule(), np.zeros(3, np.float32), sections_of_sizes(3), 2).to_state()
    for rule, sizes, seats in (
        (DistanceRule(), 2, 2),
        (DistanceRule(), 3, 1),
        (DownpourRule(), 3, 2),
    ):
        with pytest.raises(DataError):
            Center.from_state(rule, sections_of_sizes(sizes), seats, state)


def test_commits_and_rounds_are_not_taken_for_each_other():
    vector, sections = np.zeros(2, np.float32), sections_of_sizes(2)
    with pytest.raises(ParameterServerError, match="'averaging' folds rounds"):
        Center(AveragingRule(), vector, sections, 1).fold(vector, CommitInfo(0, 1, 1, 0))
    with pytest.raises(ParameterServerError, match="'downpour' folds commits"):
        Center(DownpourRule(), vector, sections, 1).aggregate([vector], [CommitInfo(0, 1, 1, 0)])

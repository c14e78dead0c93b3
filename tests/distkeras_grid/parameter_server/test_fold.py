import numpy as np
import pytest

from distkeras_grid.parameter_server.fold import CHUNK, combine_round, fold_commit, is_finite
from distkeras_grid.rules import AveragingRule, CommitInfo, DownpourRule


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
    center = np.array([1, 1], np.float32)
    payload = np.array([5, 5], np.float32)
    fold_commit(DownpourRule(), center, payload, 1, CommitInfo(0, 1, 1, 0), workers=4)
    assert center.tolist() == payload.tolist() == [6, 2]


def test_a_round_gives_everyone_the_new_center():
    center = np.zeros(3 * CHUNK + 1, np.float32)
    payloads = [np.full_like(center, value) for value in (1, 5)]
    infos = [CommitInfo(0, 1, 3, 0), CommitInfo(1, 1, 1, 0)]
    combine_round(AveragingRule(), center, payloads, 2 * CHUNK, infos)
    for vector in (center, *payloads):
        np.testing.assert_array_equal(vector, 2)

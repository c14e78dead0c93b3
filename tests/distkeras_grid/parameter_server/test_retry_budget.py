import random
import time
from itertools import islice

import pytest

from distkeras_grid.errors import RefusedError, ServerUnreachableError
from distkeras_grid.parameter_server.retry_budget import LONGEST_PAUSE, RetryBudget, pauses


def refuse(seconds):
    raise ServerUnreachableError("refused")


def test_pauses_double_up_to_a_bound_and_differ():
    plain = list(islice(pauses(lambda: 0.0), 8))
    assert plain[:3] == [0.05, 0.1, 0.2]
    assert plain[-1] == LONGEST_PAUSE
    assert next(pauses(lambda: 0.999)) == pytest.approx(plain[0] / 2, rel=0.01)
    assert len({tuple(islice(pauses(), 3)) for _ in range(5)}) == 5


def test_pauses_are_random_by_themselves():
    """Users seed Python's generator alike on all workers, and its numbers are theirs."""
    found = []
    for _ in range(2):
        random.seed(1)
        before = random.getstate()
        found.append(list(islice(pauses(), 3)))
        assert random.getstate() == before
    assert found[0] != found[1]


def test_the_seconds_are_for_all_connections_together():
    allowance = RetryBudget(0.3)
    assert allowance.connect(lambda left: left) == pytest.approx(0.3, abs=0.05)
    clock = time.monotonic()
    with pytest.raises(ServerUnreachableError):
        allowance.connect(refuse)
    assert 0.2 < time.monotonic() - clock < 0.6
    tries = []
    with pytest.raises(ServerUnreachableError):
        allowance.connect(lambda left: tries.append(left) or refuse(left))
    assert len(tries) == 1
    assert allowance.used_up


def test_what_cannot_heal_is_not_tried_again():
    def fence(seconds):
        raise RefusedError("no")

    clock = time.monotonic()
    with pytest.raises(RefusedError):
        RetryBudget(10).connect(fence)
    with pytest.raises(ServerUnreachableError):
        RetryBudget(10).connect(refuse, lambda: False)
    assert time.monotonic() - clock < 1

from __future__ import annotations

import pytest

from distkeras_grid.webhdfs import retry_policy
from distkeras_grid.webhdfs.retry_policy import (
    PAUSES,
    AttemptFailure,
    HttpError,
    NetworkErrorKind,
    Unreachable,
    is_transient,
    next_pause,
    try_other_namenode,
)

BROKEN = Unreachable("http://namenode:9870", "reset", NetworkErrorKind.BROKEN)


def refused(exception: str | None, message: str = "", status: int = 403) -> HttpError:
    return HttpError("http://namenode:9870", message, exception, status)


@pytest.mark.parametrize(
    ("failure", "passes", "another"),
    [
        (BROKEN, True, True),
        (refused("StandbyException"), True, True),
        (refused("RetriableException"), True, True),
        (refused("IOException"), True, False),
        (refused("IOException", "could only be written to 0 of the 1"), False, False),
        (refused("AccessControlException"), False, False),
        (refused(None, status=503), True, False),
        (refused(None, status=404), False, False),
    ],
)
def test_what_may_pass_and_what_another_namenode_may_know(
    failure: AttemptFailure, passes: bool, another: bool
) -> None:
    assert (is_transient(failure), try_other_namenode(failure)) == (passes, another)


def test_tries_end_by_number_by_time_and_without_any_answer() -> None:
    pauses = []
    while True:
        pause = next_pause(
            BROKEN, tries=len(pauses) + 1, seconds=sum(pauses), budget=100.0, patient=True
        )
        if pause is None:
            break
        pauses.append(pause)
    assert tuple(pauses) == PAUSES
    one = {"tries": 1, "patient": True}
    assert next_pause(BROKEN, seconds=99.9, budget=100.0, **one) == PAUSES[0]
    assert next_pause(BROKEN, seconds=99.96, budget=100.0, **one) is None
    assert next_pause(BROKEN, tries=1, seconds=0.0, budget=100.0, patient=False) is None


def test_the_pauses_outlast_a_standby_that_takes_over() -> None:
    assert sum(retry_policy.PAUSES) > 10

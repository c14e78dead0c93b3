"""How long a client tries to reconnect, and the pauses between its attempts.

A broken connection is opened again, repeatedly, until the client has been without one for the
allowed time. Pauses double and are random, so that the workers of a run do not all reconnect at
once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.parameter_server.timeouts import FIRST_PAUSE, LONGEST_PAUSE

_Result = TypeVar("_Result")
# Not Python's global generator: it is the user's, who seeds it alike on all workers, and threads
# that draw from it would change the user's numbers.
_CHANCE = random.SystemRandom().random


def pauses(chance: Callable[[], float] = _CHANCE) -> Iterator[float]:
    """Yield the pause before each further attempt [s], without end.

    Examples
    --------
    >>> from itertools import islice
    >>> list(islice(pauses(lambda: 0.0), 6))
    [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    """
    pause = FIRST_PAUSE
    while True:
        yield pause * (1 - chance() / 2)
        pause = min(LONGEST_PAUSE, 2 * pause)


class RetryBudget:
    """The time that one request may spend without a connection, however often that breaks.

    `seconds`: total time [s].
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._pauses = pauses()
        self._tried = False

    @property
    def used_up(self) -> bool:
        """Whether no time is left."""
        return self._left <= 0

    def connect(
        self,
        attempt: Callable[[float], _Result],
        worthwhile: Callable[[], bool] = lambda: True,
    ) -> _Result:
        """Try to connect until it succeeds or the seconds are used up.

        `attempt`: receives the seconds that are left, and connects.
        """
        until = time.monotonic() + self._left
        try:
            while True:
                if self._tried:
                    time.sleep(max(0.0, min(next(self._pauses), until - time.monotonic())))
                self._tried = True
                try:
                    return attempt(max(0.001, until - time.monotonic()))
                except ServerUnreachableError:
                    if time.monotonic() >= until or not worthwhile():
                        raise
        finally:
            self._left = max(0.0, until - time.monotonic())

"""One rule for what fails: it is tried again as long as it makes progress in between.

It decides about tasks that are started again because they hang, about jobs that Spark has given up,
and about servers that have died. Pure: no clock, no Spark.
"""

from __future__ import annotations

#: Failures without progress in between, after which nothing is tried any more. Spark allows as many
#: of a task (`spark.task.maxFailures`).
MOST_FAILURES = 4


class RetryPolicy:
    """Counts the failures since the last progress, of each that may fail.

    Examples
    --------
    >>> retries = RetryPolicy()
    >>> [retries.allows(0, progress=0) for _ in range(4)]
    [True, True, True, False]
    >>> retries.exhausted(0, progress=0), retries.exhausted(0, progress=100)
    (True, False)
    >>> retries.allows(0, progress=100)
    True
    """

    def __init__(self) -> None:
        # The progress at the last failure, the failures since, and whether it was tried again.
        self._last: dict[int, tuple[int, int, bool]] = {}

    def allows(self, key: int, progress: int, failures: int = 1) -> bool:
        """Record a failure; return whether to try again.

        `progress`: a number that differs from that of the last failure if there was any progress.
        `failures`: how often it has failed; Spark starts a task again before its job fails.
        """
        before, count, _ = self._last.get(key, (0, 0, True))
        count = failures if progress != before else count + failures
        allowed = progress != before or count < MOST_FAILURES
        self._last[key] = progress, count, allowed
        return allowed

    def exhausted(self, key: int, progress: int) -> bool:
        """Whether nothing was to be tried any more, and there is no progress since."""
        before, _, allowed = self._last.get(key, (0, 0, True))
        return progress == before and not allowed

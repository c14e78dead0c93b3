"""Decides how often a lost worker is started again, without clock or Spark."""

from __future__ import annotations

#: How often a worker may fail without making progress in between.
MOST_FAILURES = 4


class RetryPolicy:
    """Decides whether the job of a seat is submitted again when Spark has given it up.

    A worker that makes progress between its failures is always started again: the run comes nearer
    to its end each time. A worker without progress would fail for ever.

    Examples
    --------
    >>> tries = RetryPolicy(each=4)
    >>> tries.allows(0, rows=100)  # it had folded nothing when its job was submitted
    True
    >>> tries.allows(0, rows=100)
    False
    """

    def __init__(self, each: int) -> None:
        self._each = each
        # For each seat: its rows at the last failure, and its failures since the last progress.
        self._failed: dict[int, tuple[int, int]] = {}

    def allows(self, seat: int, rows: int) -> bool:
        """Record that a job has failed; return whether to submit it again."""
        before, failures = self._failed.get(seat, (0, 0))
        # There are fewer if the run has gone back to a checkpoint. Then nothing is known of the
        # worker's progress since.
        if rows != before:
            self._failed[seat] = (rows, 0)
            return True
        failures += self._each
        self._failed[seat] = (rows, failures)
        return failures < MOST_FAILURES

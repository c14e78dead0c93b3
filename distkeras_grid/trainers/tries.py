"""How often a worker that was lost is started again, without clock or Spark."""

from __future__ import annotations

#: So often a worker may fail without getting on between.
MOST_FAILURES = 4


class Tries:
    """Decides whether the job of a seat is submitted again when Spark has given it up.

    A worker that gets on between its failures is always started again: the run comes nearer to
    its end each time. One that does not would fail for ever.

    Parameters
    ----------
    each : int
        How many failures Spark itself allows in a job.

    Examples
    --------
    >>> tries = Tries(each=4)
    >>> tries.once_more(0, rows=100)  # it had folded nothing when its job was submitted
    True
    >>> tries.once_more(0, rows=100)
    False
    """

    def __init__(self, each: int) -> None:
        self._each = each
        # For each seat its rows at its last failure, and its failures since it has got on.
        self._failed: dict[int, tuple[int, int]] = {}

    def once_more(self, seat: int, rows: int) -> bool:
        """Take note of a job that has failed; return whether it is to be submitted again.

        Parameters
        ----------
        seat : int
            Number of the seat.
        rows : int
            Rows of it that the server has folded so far.
        """
        before, failures = self._failed.get(seat, (0, 0))
        if rows > before:
            self._failed[seat] = (rows, 0)
            return True
        failures += self._each
        self._failed[seat] = (rows, failures)
        return failures < MOST_FAILURES

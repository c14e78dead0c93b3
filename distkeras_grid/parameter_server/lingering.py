"""How long finished workers stay, in a run whose server may be replaced.

They stay because a new server may go on from a point before their last windows. But if a worker is
lost, its next attempt may need the slot of a finished one.
"""

from __future__ import annotations

from collections.abc import Sequence

from distkeras_grid.parameter_server.messages import SeatStatus
from distkeras_grid.parameter_server.watch import MISSING

#: How long a worker may be missing before the finished ones are released [s].
LINGER_SECONDS = 30.0


class Lingering:
    """Decides when finished workers are released before the run ends.

    Examples
    --------
    >>> seats = [SeatStatus(0, 1, "finished", 9, 9), SeatStatus(1, 2, "lost", 9, 3)]
    >>> lingering = Lingering()
    >>> lingering.is_over(seats, now=5.0), lingering.is_over(seats, now=36.0)
    (False, True)
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def is_over(self, seats: Sequence[SeatStatus], now: float) -> bool:
        """Whether finished workers are to be released now.

        Parameters
        ----------
        seats : sequence of SeatStatus
            Status of all seats.
        now : float
            The time, on a clock that never goes back [s].
        """
        missing = any(seat.status in MISSING for seat in seats)
        if not (missing and any(seat.status == "finished" for seat in seats)):
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since > LINGER_SECONDS

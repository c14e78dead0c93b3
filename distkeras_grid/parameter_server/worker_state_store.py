"""State that workers keep on the server, so that the next attempt on a seat can go on from it.

Only the worker itself has its own weights, its optimizer, its random generators and what
compression has held back. They would be lost with it. So the server asks for them in a reply, and
the worker sends them before its next window. This costs the worker time: the longer an answer
takes, the less often the server asks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Share of a worker's time that sending its state may take. If all workers share one line, it is
#: also the share of that line.
SHARE = 0.02


@dataclass(frozen=True, slots=True)
class WorkerStateSnapshot:
    """What a worker sent, and when."""

    sequence: int  # Number of the commit that was due when the state was sent
    version: int  # Version of the center that the worker had
    # The packed state, shape ``(bytes,)``, ``uint8``. A newer state is a new array.
    state: NDArray[np.uint8]


class WorkerStateStore:
    """The newest state of each seat, and the time at which to ask for the next one.

    Examples
    --------
    >>> store = WorkerStateStore(workers=1)
    >>> store.asks(0, now=100.0)
    True
    >>> store.receive(0, WorkerStateSnapshot(1, 1, np.zeros(8, np.uint8)), now=100.5)
    >>> store.asks(0, now=101.0), store.asks(0, now=126.0)
    (False, True)
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._snapshots: dict[int, WorkerStateSnapshot] = {}
        # When each seat without an answer was asked, and when each other seat is asked next.
        self._asked: dict[int, float] = {}
        self._due: dict[int, float] = {}

    def asks(self, seat: int, now: float, *, wanted: bool = False) -> bool:
        """Whether the reply to a seat asks for its state; if `wanted`, it asks at any time.

        Replies ask again until the seat has answered, because a reply may be lost.
        """
        if not (wanted or now >= self._due.get(seat, now)):
            return False
        self._asked[seat] = now
        return True

    def expects(self, seat: int, sequence: int) -> bool:
        """Whether a seat was asked for the state before this commit, or has just answered.

        An answer may arrive twice, because the server's confirmation may be lost.
        """
        snapshot = self._snapshots.get(seat)
        return seat in self._asked or (snapshot is not None and snapshot.sequence == sequence)

    def receive(self, seat: int, snapshot: WorkerStateSnapshot, now: float) -> None:
        """Keep the state that a seat has sent, in place of its former one."""
        self._snapshots[seat] = snapshot
        if seat in self._asked:
            took = now - self._asked.pop(seat)
            self._due[seat] = now + took * self._workers / SHARE

    def of(self, seat: int) -> WorkerStateSnapshot | None:
        """Return the last state of a seat; None if it has sent none."""
        return self._snapshots.get(seat)

    def stop_waiting(self, seat: int) -> None:
        """Stop waiting for a seat whose connection ended; its last state is kept."""
        self._asked.pop(seat, None)

    def restore(self, seat: int, snapshot: WorkerStateSnapshot) -> None:
        """Take over the state of a seat from an earlier execution of the run."""
        self._snapshots[seat] = snapshot

    @property
    def all(self) -> dict[int, WorkerStateSnapshot]:
        """All states, by seat."""
        return dict(sorted(self._snapshots.items()))

    def clear(self, seat: int) -> None:
        """Drop the state of a seat whose worker has finished."""
        self._snapshots.pop(seat, None)
        self._asked.pop(seat, None)

"""How far a long copy is, said every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

INTERVAL = 4.0  # s


class ByteProgress:
    """Says how many bytes are done; is told of each piece.

    Parameters
    ----------
    what : str
        What is done, such as ``"packing"``.
    total : int
        Bytes in all.
    say : callable
        Receives a line every 4 s.
    clock : callable
        Seconds; ``time.monotonic``.

    Examples
    --------
    >>> ticks = iter([0.0, 1.0, 5.0])
    >>> progress = ByteProgress("packing", 200_000_000, print, clock=lambda: next(ticks))
    >>> progress.advance(10_000_000)
    >>> progress.advance(90_000_000)
    packing: 100 of 200 MB
    """

    def __init__(
        self,
        what: str,
        total: int,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total = total
        self._say = say
        self._clock = clock
        self._done = 0
        self._said = clock()

    def advance(self, count: int) -> None:
        """Count `count` bytes more."""
        self._done += count
        now = self._clock()
        if now - self._said < INTERVAL:
            return
        self._said = now
        self._say(f"{self._what}: {self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB")

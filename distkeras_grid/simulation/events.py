"""Future events in the order of time."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple


class Event(NamedTuple):
    """Something that happens."""

    at: float  # When it happens [s since the run began]
    # Counts all events. Of several at the same time, the one that was added first comes first.
    order: int
    kind: str  # Kind of the event
    # worker and attempt: The worker, and its attempt. An event of a lost attempt is ignored.
    worker: int
    attempt: int


class EventQueue:
    """Future events."""

    def __init__(self) -> None:
        self._heap: list[Event] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, at: float, kind: str, worker: int, attempt: int) -> None:
        """Add an event; one at infinity never happens."""
        if at == math.inf:
            return
        heapq.heappush(self._heap, Event(at, self._count, kind, worker, attempt))
        self._count += 1

    def pop(self) -> Event:
        """Remove and return the next event."""
        return heapq.heappop(self._heap)


class SimulatedLink:
    """One direction of the server's link: messages pass one after the other.

    `bandwidth`: bandwidth of the link [bytes/s].
    `worker_bandwidth`: bandwidth of the worker's link at the other end [bytes/s].
    `latency`: time of a message on the way [s].
    """

    def __init__(self, bandwidth: float, worker_bandwidth: float, latency: float) -> None:
        self.free_at = 0.0
        self._bandwidth = bandwidth
        self._worker_bandwidth = worker_bandwidth
        self._latency = latency

    def pass_through(self, size: int, now: float) -> float:
        """Return when a message of `size` bytes that is sent `now` has arrived completely."""
        begin = now + self._latency
        self.free_at = max(begin, self.free_at) + size / self._bandwidth
        return max(self.free_at, begin + size / self._worker_bandwidth)

"""Tells of lost workers, without clock or Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from distkeras_grid.parameter_server.timeouts import REASON_SECONDS
from distkeras_grid.records import WorkerRecord


class Losses:
    """Workers whose connection has ended, until it is known why."""

    def __init__(self, tell: Callable[[WorkerRecord, WorkerRecord], None]) -> None:
        self._tell = tell
        self._waiting: dict[int, tuple[WorkerRecord, float]] = {}

    def take(self, record: WorkerRecord, now: float) -> None:
        """Note what has happened to a worker, at the time `now` [s]."""
        before, _ = self._waiting.get(record.worker, (None, 0.0))
        if record.status == "lost":
            self.explain(record.worker, "")
            self._waiting[record.worker] = record, now
        elif before is not None and before.attempt == record.attempt:
            # Its connection was broken for a while, and it has lost nothing.
            del self._waiting[record.worker]

    def look(self, reason_of: Callable[[int, int], str], now: float) -> None:
        """Tell of the workers whose reason is known, or has been waited for long enough.

        `now`: the time [s].
        """
        for worker, (record, since) in list(self._waiting.items()):
            reason = reason_of(worker, record.attempt)
            if reason or now - since > REASON_SECONDS:
                self.explain(worker, reason)

    def explain(self, worker: int, reason: str) -> bool:
        """Tell of a lost worker with this reason; return whether it was not told of before."""
        record, _ = self._waiting.pop(worker, (None, 0.0))
        if record is not None:
            self._tell(record, msgspec.structs.replace(record, message=reason))
        return record is not None


def loss_line(record: WorkerRecord, windows: int) -> str:
    """Return the line that tells of a lost worker."""
    host = f" on {record.host}" if record.host else ""
    at = "" if record.at is None else f" at {datetime.fromtimestamp(record.at):%H:%M:%S}"
    which = f" (try {record.tries}, Spark task {record.attempt})"
    reason = record.message or "its connection ended, and Spark knows no reason"
    log = f" Its log: {record.log}" if record.log else ""
    return (
        f"Worker {record.worker}{host} was lost{at} after {windows} windows{which}: {reason}{log}"
    )

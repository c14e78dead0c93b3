"""What the driver is told: one JSON object for each window, epoch, worker's step and failure."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from distkeras_grid.parameter_server.messages import WindowCommit


class EventLog:
    """Events in order, kept until the driver says that it has seen them.

    Examples
    --------
    >>> log = EventLog()
    >>> log.failure(0, 7, "OSError", "disk full")
    >>> log.failure(1, 8, "OSError", "disk full")
    >>> [event["worker"] for event in log.after(0, 10)]
    [0, 1]
    >>> [event["worker"] for event in log.after(1, 10)]
    [1]
    """

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._forgotten = 0

    def after(self, seen: int, most: int, before_epoch: float = math.inf) -> list[dict[str, Any]]:
        """Forget what was seen and return what follows.

        Parameters
        ----------
        seen : int
            Events that the driver has, counted from the start of the run.
        most : int
            Return no more than this.
        before_epoch : float, default infinity
            Return nothing from the end of this epoch on.
        """
        forget = max(0, seen - self._forgotten)
        del self._events[:forget]
        self._forgotten += forget
        chosen = self._events[:most]
        ends = (e["kind"] == "epoch" and e["epoch"] >= before_epoch for e in chosen)
        return chosen[: next((place for place, end in enumerate(ends) if end), most)]

    def window(self, worker: int, attempt: int, commit: WindowCommit, **folded: Any) -> None:
        """Note a folded window: the commit's own words and what the fold adds to them."""
        told = asdict(commit)
        del told["sequence"], told["version"]
        self._add("window", worker=worker, attempt=attempt, **told, **folded)

    def late(
        self,
        worker: int,
        attempt: int,
        commit: WindowCommit,
        staleness: int,
        version: int,
        at: float,
    ) -> None:
        """Note a window that came after its round, at Unix time `at`, and was not folded."""
        self._add(
            "late",
            worker=worker,
            attempt=attempt,
            epoch=commit.epoch,
            window=commit.window,
            samples=commit.samples,
            staleness=staleness,
            version=version,
            at=at,
        )

    def epoch(self, epoch: int, version: int, samples: int, at: float) -> None:
        """Note that the folded samples have reached the end of an epoch, at Unix time `at`."""
        self._add("epoch", epoch=epoch, version=version, samples=samples, at=at)

    def worker(
        self,
        worker: int,
        attempt: int,
        status: str,
        rows: int | None,
        window_seconds: float | None = None,
    ) -> None:
        """Note that a worker has joined, is ready, has finished, is lost or was fenced.

        A ready one has measured how long the batches of a window take it.
        """
        measured = {} if window_seconds is None else {"window_seconds": window_seconds}
        self._add("worker", worker=worker, attempt=attempt, status=status, rows=rows, **measured)

    def failure(self, worker: int, attempt: int, error: str, message: str) -> None:
        """Note a failure, with the class name of the error."""
        self._add("failure", worker=worker, attempt=attempt, error=error, message=message)

    def _add(self, kind: str, **rest: Any) -> None:
        self._events.append({"kind": kind, **rest})

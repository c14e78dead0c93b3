"""How far a Spark job is, said every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL = 4.0  # seconds


class TaskProgress:
    """Says how many tasks are done, while its ``with`` block runs.

    Parameters
    ----------
    spark : SparkSession
    what : str
        What the tasks do.
    say : callable
        Receives a line every 4 s.
    interval : float, default 4.0
        Seconds.
    """

    def __init__(
        self,
        spark: SparkSession,
        what: str,
        say: Callable[[str], object],
        interval: float = INTERVAL,
    ) -> None:
        self._tracker: Any = spark.sparkContext.statusTracker()
        self._what = what
        self._say = say
        self._interval = interval
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> TaskProgress:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join(timeout=10)

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._done.wait(self._interval):
            stages = map(self._tracker.getStageInfo, self._tracker.getActiveStageIds())
            counts = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage]
            completed, tasks = sum(done for done, _ in counts), sum(total for _, total in counts)
            seconds = time.monotonic() - began
            # None between two stages, and before the first.
            done = f"{completed} of {tasks} tasks done after " if tasks else ""
            self._say(f"  {self._what}: {done}{seconds:.0f} s")

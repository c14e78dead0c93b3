"""Stopping Spark's work for a driver that was interrupted."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

# Spark kills the Python processes of cancelled tasks within about 4 s.
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1


def stop_work(seconds: float = STOP_SECONDS) -> None:
    """Cancel all jobs of this driver, and wait until their tasks have ended.

    Tasks that still write would create a folder again that the driver deletes. What Spark logs of
    tasks that are killed is of no use to anybody, and is left out. Nothing happens without Spark,
    or if its JVM is gone.

    Parameters
    ----------
    seconds : float, default STOP_SECONDS
        The longest wait [s].
    """
    if "pyspark" not in sys.modules:
        return
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    if context is None:
        return
    deadline = time.monotonic() + seconds
    with contextlib.suppress(Py4JError, OSError), _silent(context):
        context.cancelAllJobs()
        while _running_tasks(context) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _running_tasks(context: Any) -> int:
    # The status tracker forgets cancelled tasks at once, and the scheduler when they have ended.
    running = context._jsc.sc().taskScheduler().runningTasksByExecutors().valuesIterator()
    count = 0
    while running.hasNext():
        count += running.next()
    return count


@contextlib.contextmanager
def _silent(context: Any) -> Iterator[None]:
    """Let Spark log nothing in the block."""
    level = str(context._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel())
    context.setLogLevel("OFF")
    try:
        yield
    finally:
        context.setLogLevel(level)

"""Stopping Spark's work for a driver that was interrupted."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from distkeras_grid.spark.internals import active_context, log_level, running_tasks

# Spark kills the Python processes of cancelled tasks within about 4 s.
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1
# How often the JVM may fail to answer before it counts as gone. An interrupt in the middle of a
# call breaks the connections of this thread, so the next calls may fail although it lives.
MOST_FAILURES = 5
# Notebooks whose cells are watched, by their ids.
_WATCHED: set[int] = set()


def stop_work(seconds: float = STOP_SECONDS) -> None:
    """Cancel all jobs of this driver, and wait until their tasks have ended.

    Tasks that still write would create a folder again that the driver deletes. What Spark logs of
    tasks that are killed is of no use to anybody, and is left out. Nothing happens without Spark,
    or if its JVM is gone.

    `seconds`: the longest wait [s].
    """
    if "pyspark" not in sys.modules:
        return
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    context = active_context()
    if context is None:
        return
    deadline = time.monotonic() + seconds
    level, failures = None, 0
    while failures < MOST_FAILURES and time.monotonic() < deadline:
        try:
            level = level or log_level(context)
            context.setLogLevel("OFF")
            # Again and again: an interrupt closes connections of other threads, too, and Py4J sends
            # their commands a second time, so that jobs come after the first time.
            context.cancelAllJobs()
            if not running_tasks(context):
                break
            failures = 0
        except (Py4JError, OSError):
            failures += 1
        time.sleep(POLL_SECONDS)
    if level is not None:
        with contextlib.suppress(Py4JError, OSError):
            context.setLogLevel(level)


def stop_jobs_with_cells() -> None:
    """Make an interrupted cell of a notebook stop its Spark jobs; elsewhere do nothing.

    In a script PySpark's own handler of SIGINT cancels all jobs. Jupyter replaces that handler
    while a cell runs, so the executors would continue to work for a cell that has ended.
    """
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython

    shell: Any = get_ipython()
    if shell is None or id(shell) in _WATCHED:
        return
    shell.events.register("post_run_cell", _stop_after_interrupt)
    _WATCHED.add(id(shell))


def _stop_after_interrupt(result: Any) -> None:
    from py4j.protocol import Py4JNetworkError

    # An interrupt in the middle of what Py4J sends or receives becomes its error.
    if isinstance(result.error_in_exec, KeyboardInterrupt | Py4JNetworkError):
        stop_work()

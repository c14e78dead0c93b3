"""What a notebook needs from Spark in addition to what a script needs."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from distkeras_grid.spark.internals import active_context

_WATCHED: set[int] = set()


def stop_jobs_with_cells() -> None:
    """Make an interrupted cell stop its Spark jobs; outside a notebook do nothing.

    In a script PySpark's own handler of SIGINT cancels all jobs. Jupyter replaces that handler
    while a cell runs, so the executors would continue to work for a cell that has ended.
    """
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython

    shell: Any = get_ipython()
    if shell is None or id(shell) in _WATCHED:
        return
    shell.events.register("post_run_cell", _cancel_after_interrupt)
    _WATCHED.add(id(shell))


def _cancel_after_interrupt(result: Any) -> None:
    """Cancel all jobs, as PySpark does in scripts, if a cell was interrupted.

    An interrupt in the middle of what Py4J sends or receives becomes its Py4JNetworkError.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]

    context = active_context()
    if context is None:
        return
    if isinstance(result.error_in_exec, KeyboardInterrupt):
        context.cancelAllJobs()
    elif isinstance(result.error_in_exec, Py4JNetworkError):
        # If it was the JVM that went, there are no jobs either.
        with contextlib.suppress(Py4JError, OSError):
            context.cancelAllJobs()

"""Progress of steps whose length is not known, so that no command is silent for long."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from distkeras_grid.progress import ProgressState, Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_spark(
    name: str, master: str | None, *, seconds: float = math.inf, shown: bool = True
) -> SparkSession:
    """Return a session with executors; say every few seconds what is waited for.

    `seconds`: longest wait for an executor [s].
    """
    from distkeras_grid.spark.session import build_session, wait_for_executors

    with spinner("starting Spark", shown=shown):
        spark = build_session(name, master=master)
    with spinner("waiting for executors", shown=shown):
        wait_for_executors(spark, seconds)
    return spark


def spinner(phase: str, *, shown: bool = True) -> AbstractContextManager[object]:
    """Return a context that names a step while its block runs.

    It writes to standard error, and nothing if the step ends within 4 s.
    """
    if not shown:
        return nullcontext()
    return Reporter(ProgressState(phase), at_once=False)

"""Progress of steps whose length is not known, so that no command is silent for long."""

from __future__ import annotations

import math
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distkeras_grid.progress import Reporter, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Spinner:
    """The state of a step whose length is not known."""

    phase: str  # What is being done
    detail: str = ""  # How far it is, in words; empty if that is not known

    @property
    def turn(self) -> Hashable:
        """The state is shown only when it is due."""
        return None

    @property
    def amount(self) -> int:
        """There is no rate."""
        return 0

    def status(self, rate: float, seconds: float) -> Status:  # noqa: ARG002
        """Return what is being done, how far it is, and for how long."""
        return Status([self.phase, *([self.detail] if self.detail else []), f"{seconds:.0f} s"])


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
    return Reporter(Spinner(phase), at_once=False, tells_end=False)

"""The status of a running Spark job; `distkeras_grid.progress` shows it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distkeras_grid.progress import Reporter, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The state of the running stages, queried when it is shown."""

    phase: str  # Description of what the tasks do
    tracker: Any  # Status tracker of the session

    @property
    def turn(self) -> Hashable:
        """Nothing is shown before it is due."""
        return None

    @property
    def amount(self) -> int:
        """No rate is shown, because tasks differ."""
        return 0

    def status(self, rate: float, seconds: float) -> Status:  # noqa: ARG002
        """Return how many tasks are done."""
        stages = map(self.tracker.getStageInfo, self.tracker.getActiveStageIds())
        counts = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage]
        completed, tasks = sum(done for done, _ in counts), sum(total for _, total in counts)
        # There is none between two stages, and before the first.
        done = [f"{completed} of {tasks} tasks"] if tasks else []
        return Status([self.phase, *done, f"{seconds:.0f} s"], completed / tasks if tasks else None)


def task_progress(
    spark: SparkSession, phase: str, say: Callable[[str], object]
) -> Reporter[TaskStatus]:
    """Return a reporter of the tasks that run during its ``with`` block."""
    tracker = spark.sparkContext.statusTracker()
    # At the end no stage is running whose status could be shown.
    return Reporter(TaskStatus(phase, tracker), to=say, at_once=False, tells_end=False)

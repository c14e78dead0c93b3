"""The status of a running Spark job; `distkeras_grid.progress` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distkeras_grid.progress import ProgressState, Reporter, Say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TaskStatus(ProgressState):
    """The state of the running stages, queried when it is shown."""

    tracker: Any  # Status tracker of the session

    def parts(self, rate: float, seconds: float) -> Sequence[str]:  # noqa: ARG002
        """Return how many tasks are done."""
        stages = map(self.tracker.getStageInfo, self.tracker.getActiveStageIds())
        counts = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage]
        completed, tasks = sum(done for done, _ in counts), sum(total for _, total in counts)
        # There is none between two stages, and before the first.
        done = [f"{completed} of {tasks} tasks"] if tasks else []
        return [self.phase, *done, f"{seconds:.0f} s"]


def task_progress(spark: SparkSession, phase: str, say: Say) -> Reporter[TaskStatus]:
    """Return a reporter of the tasks that run during its ``with`` block."""
    tracker = spark.sparkContext.statusTracker()
    return Reporter(TaskStatus(phase, tracker), to=say, at_once=False)

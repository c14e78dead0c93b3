"""Which tasks of a job run now, as Spark's own pages show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

# A worker's stage has one task, and one more for each time that it was lost.
_MOST_TASKS = 100_000


def running_attempts(context: SparkContext, tag: str) -> list[int]:
    """Return the attempts that run of the last stage of jobs with a tag, in ascending order.

    Parameters
    ----------
    context : SparkContext
        The driver's.
    tag : str
        The tag. Stages that such a job only reads from are left out.

    Returns
    -------
    list of int
        Their ``taskAttemptId``. Spark tells of an attempt from when it has a slot.
    """
    jvm: Any = context._jsc.sc()
    store, tracker = jvm.statusStore(), jvm.statusTracker()
    found = []
    for job in tracker.getJobIdsForTag(tag):
        told = tracker.getJobInfo(job)
        stages = list(told.get().stageIds()) if told.isDefined() else []
        info = tracker.getStageInfo(max(stages)) if stages else None
        if info is None or not info.isDefined() or not info.get().numActiveTasks():
            continue
        for attempt in range(info.get().currentAttemptId() + 1):
            tasks = store.taskList(max(stages), attempt, _MOST_TASKS)
            every = (tasks.apply(place) for place in range(tasks.size()))
            found += [int(task.taskId()) for task in every if task.status() == "RUNNING"]
    return sorted(found)

"""Which tasks of a run's jobs run now, and why others have ended, as Spark's own pages show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from distkeras_grid.parameter_server.watch import RowsTasks

if TYPE_CHECKING:
    from pyspark import SparkContext

# A worker's stage has one task, and one more for each time that it was lost.
_MOST_TASKS = 100_000
DEALING_ROWS = "dealing the rows"


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
    found = _last_tasks(context, tag, active=True)
    return sorted(int(task.taskId()) for task in found if task.status() == "RUNNING")


def failure_of(context: SparkContext, tag: str, attempt: int) -> str:
    """Return Spark's message about a task that has failed; "" if it knows of no failure.

    Parameters
    ----------
    context : SparkContext
        The driver's.
    tag : str
        A tag of the task's job.
    attempt : int
        Its ``taskAttemptId``.
    """
    for task in _last_tasks(context, tag):
        if int(task.taskId()) == attempt and task.errorMessage().isDefined():
            return str(task.errorMessage().get())
    return ""


def _last_tasks(context: SparkContext, tag: str, *, active: bool = False) -> Iterator[Any]:
    """Yield all tasks of the last stages of jobs with a tag, or of stages that run."""
    jvm: Any = context._jsc.sc()
    store, tracker = jvm.statusStore(), jvm.statusTracker()
    for job in tracker.getJobIdsForTag(tag):
        stages = _stages_of(tracker, job)
        info = tracker.getStageInfo(max(stages)) if stages else None
        if info is None or not info.isDefined() or (active and not info.get().numActiveTasks()):
            continue
        for attempt in range(info.get().currentAttemptId() + 1):
            tasks = store.taskList(max(stages), attempt, _MOST_TASKS)
            yield from (tasks.apply(place) for place in range(tasks.size()))


def tasks_before(context: SparkContext, tag: str, *, dealing: bool = False) -> RowsTasks | None:
    """Return the tasks that must end before those of the newest job with a tag.

    Parameters
    ----------
    context : SparkContext
        The driver's.
    tag : str
        The tag.
    dealing : bool, default False
        Whether all tasks of all its jobs must end, because they deal the rows.

    Returns
    -------
    RowsTasks or None
        None if there is no such job. Stages whose output exists count as if they had no tasks.
    """
    tracker: Any = context._jsc.sc().statusTracker()
    jobs = sorted(tracker.getJobIdsForTag(tag))
    if not jobs:
        return None
    stages = {stage for job in jobs for stage in _stages_of(tracker, job)}
    if not dealing:
        stages = set(sorted(_stages_of(tracker, jobs[-1]))[:-1])
    told = _infos_of(tracker, stages)
    return RowsTasks(
        completed=sum(int(each.numCompletedTasks()) for each in told),
        running=sum(int(each.numActiveTasks()) for each in told),
        dealing=dealing,
    )


def phase_of(context: SparkContext, tag: str, workers_tag: str, *, dealing: bool) -> str:
    """Return what is waited for before the first worker has come, in words.

    Parameters
    ----------
    context : SparkContext
        The driver's.
    tag : str
        Tag of all jobs.
    workers_tag : str
        Tag of those that end with the task of a worker.
    dealing : bool
        Whether the rows are being dealt.
    """
    tracker: Any = context._jsc.sc().statusTracker()
    stages = {stage for job in tracker.getJobIdsForTag(tag) for stage in _stages_of(tracker, job)}
    own = {
        max(found)
        for job in tracker.getJobIdsForTag(workers_tag)
        if (found := _stages_of(tracker, job))
    }
    if any(each.numActiveTasks() for each in _infos_of(tracker, stages - own)):
        return DEALING_ROWS
    if any(each.numActiveTasks() for each in _infos_of(tracker, own)):
        return "starting the workers"
    # Spark plans before it submits a stage. One that is submitted and has no task waits for a slot.
    is_planning = dealing and not stages & set(tracker.getActiveStageIds())
    return DEALING_ROWS if is_planning else "waiting for task slots"


def _stages_of(tracker: Any, job: int) -> list[int]:
    told = tracker.getJobInfo(job)
    return [int(stage) for stage in told.get().stageIds()] if told.isDefined() else []


def _infos_of(tracker: Any, stages: Iterable[int]) -> list[Any]:
    found = (tracker.getStageInfo(stage) for stage in sorted(stages))
    return [each.get() for each in found if each.isDefined()]

"""How close to its data Spark ran each task of a run, in Spark's own locality levels.

Balance is more important than locality: seats have the same number of rows, mixed from all sources,
whatever hosts store them. So blocks of HDFS are read on the hosts that have them (Spark's preferred
locations, the levels of the reading stages), and then each row is sent once, to the worker that has
its seat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

# A worker's stage has one task, and one more for each time that it was lost.
_MOST_TASKS = 100_000


@dataclass(frozen=True)
class Localities:
    """Spark's locality levels of a run's tasks.

    Parameters
    ----------
    workers : dict of int to str
        One for each task attempt of a worker, by its ``taskAttemptId``: ``PROCESS_LOCAL``,
        ``NODE_LOCAL``, ``NO_PREF``, ``RACK_LOCAL`` or ``ANY``.
    reading : dict of str to int
        Tasks of the stages before, by level.
    """

    workers: dict[int, str] = field(default_factory=dict)
    reading: dict[str, int] = field(default_factory=dict)


def job_localities(context: SparkContext, tag: str, workers_tag: str) -> Localities:
    """Return the levels of the tasks that ran under a job tag.

    Parameters
    ----------
    context : SparkContext
        The driver's.
    tag : str
        Tag of all jobs.
    workers_tag : str
        Tag of those that end with the task of a worker.
    """
    jvm: Any = context._jsc.sc()
    store, tracker = jvm.statusStore(), jvm.statusTracker()
    jobs = {job: list(_stages_of(tracker, job)) for job in tracker.getJobIdsForTag(tag)}
    # The last stage of a worker's job is its own, and those before are the reading that it shares.
    last = {
        max(stage for stage, _ in jobs[job])
        for job in tracker.getJobIdsForTag(workers_tag)
        if jobs.get(job)
    }
    workers: dict[int, str] = {}
    reading: Counter[str] = Counter()
    for stage, attempt in sorted({found for stages in jobs.values() for found in stages}):
        if stage in last:
            tasks = store.taskList(stage, attempt, _MOST_TASKS)
            for place in range(tasks.size()):
                task = tasks.apply(place)
                workers[int(task.taskId())] = str(task.taskLocality())
            continue
        counts = store.localitySummary(stage, attempt).iterator()
        while counts.hasNext():
            pair = counts.next()
            reading[str(pair._1())] += int(pair._2())
    return Localities(workers, dict(reading))


def _stages_of(tracker: Any, job: int) -> Iterator[tuple[int, int]]:
    """Yield number and attempt of each stage that ran, without those whose output existed."""
    found = tracker.getJobInfo(job)
    for stage in found.get().stageIds() if found.isDefined() else ():
        info = tracker.getStageInfo(stage)
        if info.isDefined():
            yield from ((stage, a) for a in range(info.get().currentAttemptId() + 1))

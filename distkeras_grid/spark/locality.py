"""How close to its data Spark ran each task of a job, in Spark's own locality levels.

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

# The stages of a job have thousands of tasks at most; the workers' stage has one for each worker.
_MOST_TASKS = 100_000


@dataclass(frozen=True)
class Localities:
    """Spark's locality levels of a job's tasks.

    Parameters
    ----------
    workers : dict of int to str
        One for each task attempt of the last stage, by its ``taskAttemptId``: ``PROCESS_LOCAL``,
        ``NODE_LOCAL``, ``NO_PREF``, ``RACK_LOCAL`` or ``ANY``.
    reading : dict of str to int
        Tasks of the stages before it, by level.
    """

    workers: dict[int, str] = field(default_factory=dict)
    reading: dict[str, int] = field(default_factory=dict)


def job_localities(context: SparkContext, tag: str) -> Localities:
    """Return the levels of the tasks that ran under a job tag.

    Parameters
    ----------
    context : SparkContext
        The driver's.
    tag : str
        Tag of the job; a query may have run as several.
    """
    jvm: Any = context._jsc.sc()
    store = jvm.statusStore()
    stages = list(_stages_of(jvm.statusTracker(), tag))
    last = max((stage for stage, _ in stages), default=None)
    workers: dict[int, str] = {}
    reading: Counter[str] = Counter()
    for stage, attempt in stages:
        if stage == last:
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


def _stages_of(tracker: Any, tag: str) -> Iterator[tuple[int, int]]:
    """Yield number and attempt of each stage that ran, without those whose output existed."""
    for job in tracker.getJobIdsForTag(tag):
        found = tracker.getJobInfo(job)
        for stage in found.get().stageIds() if found.isDefined() else ():
            info = tracker.getStageInfo(stage)
            if info.isDefined():
                yield from ((stage, a) for a in range(info.get().currentAttemptId() + 1))

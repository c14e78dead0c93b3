"""What the project asks of Spark beyond its public API, and no other module does.

PySpark's private names are here alone. A session of another kind needs other answers to the same
questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

# Logger of the driver's part of Spark's writes.
WRITES = "org.apache.spark.sql.execution.datasources.FileFormatWriter"

# A worker's stage has one task, and one more for each time that it was lost.
_MOST_TASKS = 100_000


def active_context() -> SparkContext | None:
    """Return the context of this driver; None if there is none, or it has no JVM any more."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    # An interrupt while it stops leaves one without a JVM.
    return None if context is None or context._jsc is None else context


def has_jvm() -> bool:
    """Whether this process has started a JVM and knows its port."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def is_classic(session: object) -> bool:
    """Whether a session has a JVM, which those of Spark Connect have not."""
    return hasattr(session, "_jsparkSession")


def hadoop_of(spark: SparkSession) -> tuple[Any, Any]:
    """Return the gateway to the driver's JVM, and Hadoop's configuration in it."""
    context: Any = spark.sparkContext
    return context._gateway, context._jsc.hadoopConfiguration()


def temporary_directory(spark: SparkSession) -> str:
    """Return Spark's directory of temporary files on the driver, deleted with the session."""
    context: Any = spark.sparkContext
    return str(context._temp_dir)


def silence_writes(context: SparkContext) -> None:
    """Let the driver's part of a write not log its error with a stack, before it raises it."""
    log4j = _jvm(context).org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(WRITES, log4j.Level.OFF)


def log_level(context: SparkContext) -> str:
    """Return the least severe level that Spark logs."""
    return str(_jvm(context).org.apache.logging.log4j.LogManager.getRootLogger().getLevel())


def attempt_of(context: SparkContext) -> int:
    """Return which attempt of its application this driver is."""
    attempt = _scala(context).applicationAttemptId()
    # In client mode, and without YARN, Spark knows no attempts.
    return int(attempt.get()) if attempt.isDefined() else 1


def executor_count(context: SparkContext) -> int | None:
    """Return how many executors are registered; None if the context was stopped."""
    scala = _scala(context)
    # The tracker counts the driver as an executor.
    return None if scala.isStopped() else len(scala.statusTracker().getExecutorInfos()) - 1


def barrier_slots(context: SparkContext) -> int:
    """Return how many tasks of a barrier stage can start together now."""
    scala = _scala(context)
    profile = scala.resourceProfileManager().defaultResourceProfile()
    return int(scala.maxNumConcurrentTasks(profile))


def running_tasks(context: SparkContext) -> int:
    """Return how many tasks run, those that were cancelled and have not ended among them."""
    # The status tracker forgets cancelled tasks at once, and the scheduler when they have ended.
    running = _scala(context).taskScheduler().runningTasksByExecutors().valuesIterator()
    count = 0
    while running.hasNext():
        count += running.next()
    return count


def kill_task(context: SparkContext, attempt: int, reason: str) -> None:
    """Kill one task attempt, which does not count as failed, so that Spark starts it again."""
    _scala(context).killTaskAttempt(attempt, True, reason)


def failure_of_task(context: SparkContext, tag: str, attempt: int) -> str:
    """Return the message about a failed task of a tagged job; "" if Spark knows of no failure."""
    store, tracker = _scala(context).statusStore(), _scala(context).statusTracker()
    for job in tracker.getJobIdsForTag(tag):
        stages = tracker.getJobInfo(job)
        # The last stage is that of the worker, and those before are the reading that all share.
        last = max(stages.get().stageIds(), default=None) if stages.isDefined() else None
        info = None if last is None else tracker.getStageInfo(last)
        if info is None or not info.isDefined():
            continue
        for again in range(info.get().currentAttemptId() + 1):
            tasks = store.taskList(last, again, _MOST_TASKS)
            for task in map(tasks.apply, range(tasks.size())):
                if int(task.taskId()) == attempt and task.errorMessage().isDefined():
                    return str(task.errorMessage().get())
    return ""


def plan_of(frame: DataFrame) -> str:
    """Return the physical plan as text."""
    plans: Any = frame._jdf
    return str(plans.queryExecution().executedPlan().toString())


def input_files(frame: DataFrame) -> list[str]:
    """Return the URIs of all files of a DataFrame, with one call of the JVM."""
    files: Any = frame._jdf
    strings = _jvm(frame.sparkSession.sparkContext).org.apache.hadoop.util.StringUtils
    joined = str(strings.join("\n", files.inputFiles()))
    return joined.split("\n") if joined else []


def share_rows(frame: DataFrame) -> tuple[int, Callable[[], DataFrame]]:
    """Return the number of a frame's partitions, and what makes frames of the same ones.

    They share the shuffles before them, which frames of the same query would compute anew.
    """
    from pyspark.sql import DataFrame

    session: Any = frame.sparkSession
    plan: Any = frame._jdf
    rows = plan.queryExecution().toRdd()

    def same() -> DataFrame:
        part = session._jsparkSession.internalCreateDataFrame(rows, plan.schema(), False)
        return DataFrame(part, session)

    return int(rows.getNumPartitions()), same


def collect_partitions(rows: RDD[Row], partitions: Sequence[int]) -> list[Row]:
    """Compute some partitions in a job, like `SparkContext.runJob` but without a Python function.

    Such a function would cost each task a second Python process.
    """
    from pyspark.util import _load_from_socket

    context: Any = rows.context
    # When a job fails, Spark ends all jobs whose lineage has the RDD that it has computed. So each
    # job computes one of its own, on top of the rows that all share.
    rdd: Any = context.union([rows])
    socket = _jvm(context).PythonRDD.runJob(_scala(context), rdd._jrdd, list(partitions))
    source: Any = _load_from_socket(socket, rdd._jrdd_deserializer)
    # Older versions of Spark return the rows themselves.
    with source if isinstance(source, AbstractContextManager) else nullcontext(source) as stream:
        return list(stream)


def _jvm(context: Any) -> Any:
    return context._jvm


def _scala(context: Any) -> Any:
    """Return Spark's own context, of which PySpark's shows a part."""
    return context._jsc.sc()

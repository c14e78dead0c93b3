"""One Spark job with all workers of a run, in a thread beside the driver's own.

The tasks are ordinary ones, never a barrier stage. Spark does not retry a barrier stage that ends
in ``collect``, but it starts an ordinary task that died again, without the others.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import ClusterError, GridError, NoSpaceError, error_named
from distkeras_grid.file_systems import FULL, meaning
from distkeras_grid.spark.locality import Localities, job_localities
from distkeras_grid.spark.memory import Container, megabytes, up

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

DIED = (
    "A worker's Python process died without an error, as it does when the system kills it for lack "
    "of memory. Look at the executor's log, give executors more memory, or use fewer workers."
)

# What YARN says about a container that used more than it had asked for, as Spark passes it on.
KILLED = re.compile(
    r"Container killed by YARN for exceeding (?:physical )?memory limits\. "
    r"(?P<used>[\d.]+) (?P<used_unit>[KMGT])B of (?P<limit>[\d.]+) (?P<limit_unit>[KMGT])B"
)
# YARN measures only every few seconds, and the container was still growing.
KILLED_MARGIN = 1.25

# By default Spark sends rows to Python in pieces of up to 64 MB. JVM and worker hold several.
PIECE_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
PIECE = "16m"

# Spark cancels a job in less than 0.2 s; a driver that is busy may need more.
CANCEL_SECONDS = 5.0

Task = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


class Launch:
    """A job running in a thread of its own.

    Parameters
    ----------
    frame : DataFrame
        One partition for each worker, as `seats.deal` returns it.
    task : callable
        What each task calls with the record batches of its partition.
    schema : str
        Spark DDL of what the task yields.
    name : str
        Name of the job in Spark's pages; also the tag by which it is cancelled.
    """

    def __init__(self, frame: DataFrame, task: Task, schema: str, name: str) -> None:
        from pyspark import InheritableThread

        self._context = frame.sparkSession.sparkContext
        self._tag = name
        self._done = threading.Event()
        self.rows: list[Row] = []
        self.error: Exception | None = None
        self._thread: Any = InheritableThread(
            target=self._collect, args=(frame, task, schema), daemon=True
        )

    def start(self) -> None:
        """Submit the job."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the job has ended, with or without success."""
        return self._done.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait for the job's end, at most `timeout` seconds; return whether it has ended."""
        return self._done.wait(timeout)

    def cancel(self) -> None:
        """Stop the job's tasks; Spark kills their Python processes within about 4 s."""
        deadline = time.monotonic() + CANCEL_SECONDS
        # Repeated, because one query is several jobs, and the next may not be submitted yet.
        while not self.done and time.monotonic() < deadline:
            self._context.cancelJobsWithTag(self._tag)
            self.wait(0.1)

    def restart(self, attempt: int) -> None:
        """Kill one task attempt, which Spark then starts again on any executor.

        Parameters
        ----------
        attempt : int
            Its ``taskAttemptId``. If it has ended, nothing happens.
        """
        # Only the JVM's SparkContext has this. A killed attempt does not count as a failed one.
        jvm_context: Any = self._context._jsc.sc()
        jvm_context.killTaskAttempt(attempt, True, "the worker is silent")

    def result(self) -> list[Row]:
        """Return what the tasks yielded.

        Raises
        ------
        GridError
            If the job failed: the `GridError` that a task raised, or a `ClusterError` with Spark's
            own reason.
        """
        if self.error is not None:
            master = str(self._context.master)
            overhead = executor_overhead(self._context.getConf().get)
            reason = spark_reason(self.error)
            raise job_error(self._tag, reason, master, overhead) from self.error
        return self.rows

    def localities(self) -> Localities:
        """Return how close to their data Spark ran the job's tasks."""
        return job_localities(self._context, self._tag)

    def _collect(self, frame: DataFrame, task: Task, schema: str) -> None:
        self._context.addJobTag(self._tag)
        try:
            self._context.setLocalProperty("spark.job.description", self._tag)
            with small_pieces(frame.sparkSession):
                self.rows = frame.mapInArrow(task, schema).collect()
        except Exception as error:  # noqa: BLE001 - kept, and raised by result() in the caller's thread
            self.error = error
        finally:
            self._context.removeJobTag(self._tag)
            self._done.set()


@contextmanager
def small_pieces(spark: SparkSession) -> Iterator[None]:
    """Limit the pieces in which rows come to Python to `PIECE`, or to the user's smaller value."""
    before = spark.conf.get(PIECE_SETTING, None)
    if before is not None and 0 < megabytes(before) <= megabytes(PIECE):
        yield
        return
    spark.conf.set(PIECE_SETTING, PIECE)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(PIECE_SETTING)
        else:
            spark.conf.set(PIECE_SETTING, before)


def executor_overhead(setting: Callable[[str], str | None]) -> int:
    """Return the memory overhead of an executor's container [MB]."""
    return Container.of(setting, "executor").overhead_mb


def job_error(name: str, reason: str, master: str, overhead_mb: int | None = None) -> GridError:
    """Build the error for a job that failed after Spark's last attempt.

    Parameters
    ----------
    name : str
        Name of the job.
    reason : str
        What `spark_reason` found.
    master : str
        Spark's master, which decides whether tasks are tried again.
    overhead_mb : int, optional
        Value of ``spark.executor.memoryOverhead``, for an executor killed for its memory.

    Examples
    --------
    >>> job_error("run", "distkeras_grid.errors.RefusedError: 3 rows", "yarn")
    RefusedError('3 rows')
    >>> print(str(job_error("run", "It died.", "local[2]"))[:42], "...")
    Spark gave up on the job 'run': It died. W ...
    """
    kind, _, message = reason.partition(": ")
    ours = error_named(kind.removeprefix("distkeras_grid.errors."), message, GridError)
    if ours is not None:
        return ours
    if full := meaning(FULL, reason):
        return NoSpaceError(
            f"The job {name!r} ran out of disk space: {reason.removesuffix('.')}. {full} Spark's "
            "own local folders (spark.local.dir) need space, too."
        )
    killed = KILLED.search(reason)
    if killed is not None:
        return ClusterError(_killed(name, killed, overhead_mb))
    once = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    advice = ""
    if once is not None:
        advice = (
            f" With the master {master!r} Spark does not retry tasks; with "
            f"'local[{once.group(1) or 1},4]' it does."
        )
    return ClusterError(f"Spark gave up on the job {name!r}: {reason}{advice}")


def _killed(name: str, killed: re.Match[str], overhead_mb: int | None) -> str:
    """Return a message with the setting to raise, and a value that would have been enough."""
    used, limit = (
        float(killed[which]) * megabytes(f"1{unit}")
        for which, unit in (("used", killed["used_unit"]), ("limit", killed["limit_unit"]))
    )
    more = max(0.0, KILLED_MARGIN * used - limit)
    if overhead_mb is None:
        advice = f"raise spark.executor.memoryOverhead by {up(more)} MB"
    else:
        advice = f"set spark.executor.memoryOverhead={up(overhead_mb + more)}m (now {overhead_mb})"
    return (
        f"YARN killed an executor of the job {name!r} because of its memory. Received: "
        f"{killed['used']} {killed['used_unit']}B used of {killed['limit']} "
        f"{killed['limit_unit']}B. Python with TensorFlow is outside the JVM's heap: {advice}, or "
        "lower the batch size."
    )


def spark_reason(error: BaseException) -> str:
    r"""Return the line of a Spark error that names the cause, without the JVM's stack trace.

    Examples
    --------
    >>> text = "Job aborted: Task 0 failed\nTraceback\n  File x\nValueError: no labels\n"
    >>> spark_reason(RuntimeError(text))
    'ValueError: no labels'
    """
    if "Python worker exited unexpectedly" in str(error):
        return DIED
    # Py4J begins the line of a Java exception with a colon.
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    # Spark wraps a file system's error about a full disk or quota in errors of its own.
    full = next((line for line in lines if meaning(FULL, line)), None)
    if full is not None:
        return full.removeprefix("Caused by: ")
    told = [line for line in lines if not line.startswith(("at ", "File ", "Traceback"))]
    causes = [line for line in told if _names_exception(line)]
    return (causes or told or [repr(error)])[-1 if causes else 0]


def _names_exception(line: str) -> bool:
    head = line.split(":", 1)[0].rsplit(".", 1)[-1]
    return head.endswith(("Error", "Exception")) and " " not in head and "(" not in head

"""Runs one Spark job for each worker of a run, each in a thread of its own.

The rows are dealt once, and all jobs share that shuffle. When an executor is lost, a part of the
shuffle is lost, too. Spark then restarts all unfinished tasks of the job, even running ones, and
gives the job up after the fourth time. So each worker has a job of its own.

The tasks are ordinary ones, which Spark starts again one by one. Only a worker that is itself a
group of tasks is a barrier stage: Spark starts all of them at once, and if one is lost, it ends all
of them and their job, which is then submitted again.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import (
    ClusterError,
    GridError,
    NoSpaceError,
    NotAuthenticatedError,
    StorageError,
    error_named,
)
from distkeras_grid.file_systems import FORBIDDEN, NODES, STRANGER, full, meaning
from distkeras_grid.spark.internals import (
    barrier_slots,
    collect_partitions,
    failure_of_task,
    kill_task,
    share_rows,
)
from distkeras_grid.spark.memory import ExecutorContainer, megabytes, round_up
from distkeras_grid.spark.session import READ_ROWS, READ_SETTING, setting_of_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD, Broadcast, SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

DIED = (
    "A worker's Python process died without an error, as it does when the system kills it for lack "
    "of memory. Look at the executor's log, give executors more memory, or use fewer workers."
)

# YARN's message about a container that used more memory than requested, as Spark passes it on.
KILLED = "Container killed by YARN for exceeding"
# How much larger the overhead is that an error proposes.
KILLED_FACTOR = 1.5

# Times that YARN writes before each line of its diagnostics.
TIMES = re.compile(r"\[\d{4}-\d\d-\d\d [\d:.,]+\]")
LONGEST_REASON = 400  # characters

# How the lines of tracebacks begin that name an error of ours.
OURS = "distkeras_grid.errors."

# By default Spark sends rows to Python in batches of up to 64 MB. JVM and worker hold several.
PIECE_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
PIECE = "16m"

# Spark cancels a job in less than 0.2 s; a driver that is busy may need more.
CANCEL_SECONDS = 5.0

# How often a group looks for its slots [s].
SLOT_SECONDS = 0.2

Task = Callable[..., Iterator["pa.RecordBatch"]]


class WorkerJobs:
    """The workers' jobs, each in a thread of its own.

    `key_of`: takes the number of a seat and returns its key, which only the closure of this seat's
    tasks has; `task` takes it before the batches.
    `tasks`: number of tasks of the only worker, if it is a group; all partitions are theirs.
    """

    def __init__(
        self,
        frame: DataFrame,
        task: Task,
        schema: str,
        name: str,
        key_of: Callable[[int], bytes],
        tasks: int | None = None,
    ) -> None:
        self._key_of, self._tasks = key_of, tasks
        self._context = frame.sparkSession.sparkContext
        self._frame, self._task, self._schema, self._tag = frame, task, schema, name
        # Guards everything below, which the jobs' threads change.
        self._changed = threading.Condition()
        # What each seat's job computes.
        self._rdds: list[RDD[Row]] = []
        self._has_rows = self._cancelled = False
        self._running = 0
        self._rows: dict[int, list[Row]] = {}
        # Errors by seat, the oldest first. Key None is the error of dealing the rows.
        self._errors: dict[int | None, Exception] = {}
        self._submitted: Counter[int] = Counter()

    def start(self) -> None:
        """Deal the rows, and submit the jobs."""
        self._in_thread(self._deal)

    @property
    def done(self) -> bool:
        """Whether no job runs any more, with or without success."""
        with self._changed:
            return self._has_rows and not self._running

    @property
    def failed(self) -> tuple[int, ...]:
        """Seats whose jobs have failed and were not submitted again."""
        with self._changed:
            return tuple(seat for seat in self._errors if seat is not None)

    def wait(self, timeout: float) -> bool:
        """Wait for the end of all jobs; return whether they have ended.

        `timeout`: the longest wait [s].
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_rows and not self._running, timeout)
        return self.done

    def again(self, seat: int) -> None:
        """Submit the failed job of a seat again.

        The rows are not dealt again. Spark recomputes the lost ones.
        """
        with self._changed:
            del self._errors[seat]
        self._submit(seat)

    def cancel(self) -> None:
        """Stop the jobs' tasks; Spark kills their Python processes within about 4 s."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        deadline = time.monotonic() + CANCEL_SECONDS
        # Repeated, because a job may not be submitted yet.
        while not self.done and time.monotonic() < deadline:
            self._context.cancelJobsWithTag(self._tag)
            self.wait(0.1)

    def restart(self, attempt: int) -> None:
        """Kill one task attempt, which Spark then starts again on any executor."""
        kill_task(self._context, attempt, "the worker is silent")

    def error(self, seat: int | None = None) -> GridError | None:
        """Return why a seat's job has failed; without a seat, why the first job failed."""
        with self._changed:
            first = next(iter(self._errors), None)
            which = first if seat is None else seat
            cause = self._errors.get(which)
            once = which is None or self._submitted[which] == 1
        if cause is None:
            return None
        # A job that was submitted again was tried again, whatever the master is.
        master = str(self._context.master) if once else ""
        container = ExecutorContainer.of(self._context.getConf().get, "executor")
        error = job_error(self._tag, spark_reason(cause), master, container.overhead_mb)
        error.__cause__ = cause
        return error

    def reason_of_loss(self, seat: int, attempt: int) -> str:
        """Return why a seat's task has failed, in a line; "" if Spark does not know of it (yet)."""
        failure = failure_of_task(self._context, self._seat_tag(seat), attempt)
        return loss_reason(failure) if failure else ""

    def rows(self) -> list[Row]:
        """Return what the tasks of the jobs yielded that have ended well so far."""
        with self._changed:
            return [row for _, rows in sorted(self._rows.items()) for row in rows]

    @property
    def dealing(self) -> bool:
        """Whether Spark deals the rows, so that no worker has a job yet."""
        with self._changed:
            return not self._has_rows

    @property
    def failures_of_a_job(self) -> int:
        """How often a task, or a group of them, may fail before Spark gives its job up."""
        if self._tasks is not None:
            # Spark does not try the last stage of a job again if it is a barrier stage.
            return 1
        return failures_of_a_job(str(self._context.master), self._context.getConf().get)

    def _await_slots(self) -> bool:
        """Wait for a slot for each task of a group; return whether it may start.

        Spark itself would look every 15 s only, and cancel no job that waits for the next look.
        """
        while self._tasks is not None and lack_of_slots(self._context, self._tasks):
            with self._changed:
                if self._changed.wait_for(lambda: self._cancelled, SLOT_SECONDS):
                    return False
        return True

    def _seat_tag(self, seat: int) -> str:
        """Return a second tag, of the jobs of one seat."""
        return f"{self._tag} worker {seat}"

    def _in_thread(self, target: Callable[..., None], *args: Any) -> None:
        from pyspark import InheritableThread

        thread: Any = InheritableThread(target=target, args=args, daemon=True)
        thread.start()

    def _deal(self) -> None:
        error = None
        try:
            with self._tagged(self._tag), limit_arrow_batch(self._frame.sparkSession):
                rdds = self._planned()
        except Exception as raised:  # noqa: BLE001 - kept for error(), which the caller's thread asks for
            error = raised
        with self._changed:
            if error is None:
                self._rdds = rdds
                for seat in range(len(rdds)):
                    self._submit(seat)
            else:
                self._errors[None] = error
            self._has_rows = True
            self._changed.notify_all()

    def _planned(self) -> list[RDD[Row]]:
        """Deal the rows, and return what the job of each seat computes on them.

        Each seat has a function of its own with its key, on the rows that all share: a frame for
        each seat would deal them anew. What the functions have in common, such as the model, Spark
        sends to an executor once.
        """
        from pyspark.serializers import CloudPickleSerializer

        group = self._tasks is not None
        seats, same_rows = share_rows(self._frame)
        serializer: Any = CloudPickleSerializer
        shared = self._context.broadcast(serializer().dumps(self._task))
        return [
            same_rows()
            .mapInArrow(partial(_with_key, shared, self._key_of(seat)), self._schema, barrier=group)
            .rdd
            for seat in range(1 if group else seats)
        ]

    def _submit(self, seat: int) -> None:
        with self._changed:
            if self._cancelled:
                return
            self._running += 1
            self._submitted[seat] += 1
        try:
            self._in_thread(self._collect, seat)
        except RuntimeError as error:
            # The system gives no more threads.
            self._end(seat, error=error)

    def _collect(self, seat: int) -> None:
        rows, error = None, None
        try:
            if self._await_slots():
                with self._tagged(self._tag, self._seat_tag(seat)):
                    partitions = [seat] if self._tasks is None else range(self._tasks)
                    rows = collect_partitions(self._rdds[seat], partitions)
        except Exception as raised:  # noqa: BLE001 - kept for error(), which the caller's thread asks for
            error = raised
        self._end(seat, rows, error)

    def _end(
        self, seat: int, rows: list[Row] | None = None, error: Exception | None = None
    ) -> None:
        with self._changed:
            if error is not None:
                self._errors[seat] = error
            elif rows is not None:
                self._rows[seat] = rows
            self._running -= 1
            self._changed.notify_all()

    @contextmanager
    def _tagged(self, *tags: str) -> Iterator[None]:
        for tag in tags:
            self._context.addJobTag(tag)
        try:
            self._context.setLocalProperty("spark.job.description", self._tag)
            yield
        finally:
            for tag in tags:
                self._context.removeJobTag(tag)


def _with_key(
    shared: Broadcast[bytes], key: bytes, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the function that all tasks share with the key of this one."""
    from pyspark.serializers import CloudPickleSerializer

    serializer: Any = CloudPickleSerializer
    yield from serializer().loads(shared.value)(key, batches)


def lack_of_slots(context: SparkContext, tasks: int) -> str:
    """Return why a group cannot start now; "" if Spark has a slot for each of its tasks."""
    slots = barrier_slots(context)
    return "" if slots >= tasks else f"{tasks} tasks start together, and Spark has {slots} slots."


def failures_of_a_job(master: str, setting: Callable[[str, str], str | None]) -> int:
    """Return how often a task may fail before Spark gives its job up.

    Examples
    --------
    >>> [failures_of_a_job(master, {}.get) for master in ("local[2]", "local[2,3]", "yarn")]
    [1, 3, 4]
    """
    local = re.fullmatch(r"local(?:\[(?:\d+|\*)(?:,(\d+))?\])?", master)
    if local is not None:
        return int(local[1] or 1)
    return int(setting("spark.task.maxFailures", "4") or 4)


@contextmanager
def limit_arrow_batch(spark: SparkSession) -> Iterator[None]:
    """Limit the Arrow batches sent to Python to `PIECE`, and the rows of Parquet read at once.

    Smaller values of the user's stay.
    """
    before = spark.conf.get(PIECE_SETTING, None)
    fits = before is not None and 0 < megabytes(before) <= megabytes(PIECE)
    value = before if before is not None and fits else PIECE
    rows = min(int(spark.conf.get(READ_SETTING, None) or READ_ROWS), int(READ_ROWS))
    with (
        setting_of_session(spark, PIECE_SETTING, value),
        setting_of_session(spark, READ_SETTING, str(rows)),
    ):
        yield


def job_error(name: str, reason: str, master: str, overhead_mb: int | None = None) -> GridError:
    """Build the error for a job that failed after Spark's last attempt.

    `overhead_mb`: value of ``spark.executor.memoryOverhead`` [MB], for executors killed for their
    memory.

    Examples
    --------
    >>> job_error("run", "distkeras_grid.errors.RefusedError: 3 rows", "yarn")
    RefusedError('3 rows')
    >>> print(str(job_error("run", "It died.", "local[2]"))[:42], "...")
    Spark gave up on the job 'run': It died. W ...
    """
    kind, _, message = reason.partition(": ")
    ours = error_named(kind.removeprefix(OURS), message, GridError)
    if ours is not None:
        return ours
    if advice := full(reason):
        return NoSpaceError(
            f"The job {name!r} ran out of disk space: {reason.removesuffix('.')}. {advice} Spark's "
            "own local folders (spark.local.dir) need space, too."
        )
    if advice := meaning(STRANGER, reason):
        return NotAuthenticatedError(
            f"The job {name!r} is not known to the cluster: {reason.removesuffix('.')}. {advice}"
        )
    if advice := meaning(NODES | FORBIDDEN, reason):
        return StorageError(
            f"The job {name!r} cannot read or write its files: {reason.removesuffix('.')}. {advice}"
        )
    if KILLED in reason:
        change = "raise spark.executor.memoryOverhead"
        if overhead_mb is not None:
            more = round_up(KILLED_FACTOR * overhead_mb)
            change = f"set spark.executor.memoryOverhead={more}m (now {overhead_mb})"
        return ClusterError(
            f"YARN killed an executor of the job {name!r} because of its memory. Received: "
            f"{reason} Python with TensorFlow is outside the JVM's heap: {change}, or lower the "
            "batch size."
        )
    once = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    advice = ""
    if once is not None:
        advice = (
            f" With the master {master!r} Spark does not retry tasks; with "
            f"'local[{once.group(1) or 1},4]' it does."
        )
    return ClusterError(f"Spark gave up on the job {name!r}: {reason}{advice}")


def spark_reason(error: BaseException) -> str:
    r"""Return the line of a Spark error that names the cause.

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
    messages = [line for line in lines if not line.startswith(("at ", "File ", "Traceback"))]
    causes = [line for line in messages if _names_exception(line)]
    if causes and causes[-1].startswith(OURS):
        # Ours says more than what has caused it.
        return causes[-1]
    # Spark wraps errors about a full disk, lost blocks, a missing ticket or a lack of permission in
    # errors of its own. The last one is looked for last, because Hadoop's exception of it also
    # tells of a missing ticket.
    for signs in (NODES | STRANGER, FORBIDDEN):
        storage = next((line for line in lines if full(line) or meaning(signs, line)), None)
        if storage is not None:
            return storage.removeprefix("Caused by: ")
    return (causes or messages or [repr(error)])[-1 if causes else 0]


def loss_reason(message: str) -> str:
    r"""Return Spark's message about a failed task in a line.

    Examples
    --------
    >>> lost = "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: "
    >>> loss_reason(lost + "Container c_2 on host: n3. Exit status: 137. Diagnostics: [2026-11-26 "
    ...             "03:12:07.123]Killed by external signal\n.")
    'Container c_2 on host: n3. Exit status: 137. Diagnostics: Killed by external signal .'
    >>> loss_reason("Traceback\n  File x\nValueError: no labels\n")
    'ValueError: no labels'
    """
    _, is_lost, reason = message.partition(" Reason: ")
    if not is_lost:
        return spark_reason(RuntimeError(message))[:LONGEST_REASON]
    return " ".join(TIMES.sub("", reason).split())[:LONGEST_REASON]


def _names_exception(line: str) -> bool:
    head = line.split(":", 1)[0].rsplit(".", 1)[-1]
    return head.endswith(("Error", "Exception")) and " " not in head and "(" not in head

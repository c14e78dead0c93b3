"""One Spark job that holds all workers of a run, started beside the driver's own thread.

Ordinary tasks, never a barrier stage: a barrier stage that ends in ``collect`` is not retried,
while of ordinary tasks the one that died runs again alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import ClusterError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row

Task = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


class Launch:
    """A job running in a thread of its own.

    Parameters
    ----------
    frame : DataFrame
        One partition a worker, as `seats.deal` returns it.
    task : callable
        What each task runs over the record batches of its partition.
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
        """Whether the job has ended, well or not."""
        return self._done.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait for the job's end, at most `timeout` seconds; return whether it has ended."""
        return self._done.wait(timeout)

    def cancel(self) -> None:
        """Stop the job's tasks; Spark kills their Python processes within about 4 s."""
        if not self.done:
            self._context.cancelJobsWithTag(self._tag)

    def result(self) -> list[Row]:
        """Return what the tasks yielded.

        Raises
        ------
        ClusterError
            If the job failed; ends with Spark's own reason.
        """
        if self.error is not None:
            raise ClusterError(
                f"Spark gave up on the job {self._tag!r}: {spark_reason(self.error)}"
            ) from self.error
        return self.rows

    def _collect(self, frame: DataFrame, task: Task, schema: str) -> None:
        self._context.addJobTag(self._tag)
        try:
            self._context.setLocalProperty("spark.job.description", self._tag)
            self.rows = frame.mapInArrow(task, schema).collect()
        except Exception as error:  # noqa: BLE001 - kept, and raised by result() in the caller's thread
            self.error = error
        finally:
            self._context.removeJobTag(self._tag)
            self._done.set()


def spark_reason(error: BaseException) -> str:
    r"""Return the line of a Spark error that tells the cause, without the JVM's stack.

    Examples
    --------
    >>> text = "Job aborted: Task 0 failed\nTraceback\n  File x\nValueError: no labels\n"
    >>> spark_reason(RuntimeError(text))
    'ValueError: no labels'
    """
    # Py4J begins the line of a Java exception with a colon.
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("at ", "File ", "Traceback"))]
    causes = [line for line in told if _names_exception(line)]
    return (causes or told or [repr(error)])[-1 if causes else 0]


def _names_exception(line: str) -> bool:
    head = line.split(":", 1)[0].rsplit(".", 1)[-1]
    return head.endswith(("Error", "Exception")) and " " not in head and "(" not in head

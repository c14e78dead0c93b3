"""The Spark session: our own, or the user's, checked before work starts."""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from distkeras_grid.checkpoints import Driver
from distkeras_grid.errors import ConfigurationError, StartTimeoutError
from distkeras_grid.spark.cancel import stop_jobs_with_cells
from distkeras_grid.spark.driver_jvm import launching, with_address
from distkeras_grid.spark.internals import (
    active_context,
    attempt_of,
    executor_count,
    silence_writes,
)
from distkeras_grid.spark.local_names import use_utf8

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Rows of Parquet that Spark reads at once. Of its 4,096, large images take more memory than an
# executor has.
READ_SETTING, READ_ROWS = "spark.sql.parquet.columnarReaderBatchSize", "64"
# All cores, and failed tasks are retried.
DEFAULT_MASTER = "local[*,4]"

# spark-submit leaves the port of its JVM here, for the Python that it starts.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def planned_settings(master: str | None) -> dict[str, str]:
    """Return the settings that are known before `build_session` starts; at least the master."""
    from pyspark import SparkConf, SparkContext

    if _SUBMITTED in os.environ:
        SparkContext.getSystemProperty("spark.master")
        return dict(SparkConf().getAll())
    return {"spark.master": master or DEFAULT_MASTER}


def planned_master(master: str | None) -> str | None:
    """Return the master that `build_session` will use, None if a submission has chosen it."""
    if _SUBMITTED in os.environ:
        return None
    # `build_session` returns the session that is running, whatever master is named.
    running = active_context()
    return str(running.master) if running is not None else master or DEFAULT_MASTER


def build_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running session, or build one.

    Under ``spark-submit`` the submission decides everything, including interpreter and master.
    Otherwise Spark starts on this machine, and executors use the interpreter that runs this.

    Parameters
    ----------
    name : str
        The application's name in Spark's pages.
    master : str, optional
        Spark master. The default ``local[*,4]`` takes all cores and retries failed tasks, which
        ``local[*]`` never does. Not used under ``spark-submit``.
    settings : mapping of str to str, optional
        Further Spark settings, which those of a submission override.
    """
    refuse_connect("The running session")
    from pyspark import SparkConf, SparkContext
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    ours = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        READ_SETTING: READ_ROWS,
        **(settings or {}),
    }
    builder = SparkSession.builder
    if _SUBMITTED in os.environ:
        # SparkConf() is empty until something has used the submission's JVM, and settings of the
        # builder would replace those of the submission.
        SparkContext.getSystemProperty("spark.master")
        submitted = SparkConf()
        ours = {key: value for key, value in ours.items() if not submitted.contains(key)}
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    else:
        # A stray PYSPARK_PYTHON of the shell must not give the executors another interpreter.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        use_utf8()
        ours = {
            "spark.app.name": name,
            "spark.master": master or DEFAULT_MASTER,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "2g",
            **ours,
        }
    for key, value in ours.items():
        builder = builder.config(key, value)
    is_local = local_cores(ours.get("spark.master", "")) is not None
    with launching(), with_address() if is_local else nullcontext():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    silence_writes(session.sparkContext)
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # PySpark writes the message of each exception as JSON, too, before it raises it.
        PySparkLogger.getLogger(logger).setLevel("CRITICAL")
    stop_jobs_with_cells()
    return session


def refuse_connect(what: str, *, remote: bool | None = None) -> None:
    """Refuse a session of Spark Connect, or what comes from one."""
    from pyspark.sql.utils import is_remote

    if is_remote() if remote is None else remote:
        raise ConfigurationError(
            f"{what} is of Spark Connect, which has no SparkContext on this side: jobs, broadcasts "
            "and the addresses of this driver need one. Use a classic session (spark-submit, or "
            "SparkSession.builder.master(...))."
        )


def active_session() -> SparkSession:
    """Return the session of this driver."""
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    if TaskContext.get() is not None:
        raise ConfigurationError(
            "This runs on the driver only. Received: a call inside a Spark task. Call it outside."
        )
    refuse_connect("The running session")
    session = SparkSession.getActiveSession()
    if session is None:
        return build_session("distkeras_grid")
    stop_jobs_with_cells()
    return session


def this_driver(spark: SparkSession) -> Driver:
    """Return this driver, as Spark names it."""
    context = spark.sparkContext
    return Driver(str(context.applicationId), attempt_of(context))


# How long Spark's own schedulers wait for the first executors
# (spark.scheduler.maxRegisteredResourcesWaitingTime).
REGISTRATION_SECONDS = 30.0
# Executors of one application register within a second or two of each other.
SETTLED_SECONDS = 3.0


def lacks_executors(spark: SparkSession) -> bool:
    """Tell whether no executor has registered yet, and one is to come without a job.

    A local master has none. With dynamic allocation they come only for jobs.
    """
    context = spark.sparkContext
    dynamic = context.getConf().get("spark.dynamicAllocation.enabled", "false")
    if local_cores(str(context.master)) is not None or dynamic == "true":
        return False
    # A session that was stopped gets no more.
    return executor_count(context) == 0


def wait_for_executors(spark: SparkSession, seconds: float = math.inf) -> None:
    """Wait until the session does not lack executors any more, see `lacks_executors`.

    `seconds`: longest wait [s]. By default there is none, because a cluster may be full for hours,
    and Spark's own jobs wait as long.
    """
    deadline = time.monotonic() + seconds
    while lacks_executors(spark):
        if time.monotonic() > deadline:
            raise StartTimeoutError(
                f"No executor has come in {seconds:.0f} s. Look whether "
                f"{spark.sparkContext.master} has free cores and memory for one, or raise "
                "start_timeout."
            )
        time.sleep(0.2)


def stable_slot_count(spark: SparkSession, wanted: int | None) -> int:
    """Return `task_slots` when no more executors are to be expected.

    Executors register in the first seconds of a session. A run that counted them at once would
    take the first ones for the whole cluster.

    `wanted`: slots that are enough. Without it, their number must not have changed for a while.
    """
    context = spark.sparkContext
    slots = task_slots(spark)
    changed = time.monotonic()
    while local_cores(str(context.master)) is None and slots < (wanted or sys.maxsize):
        age = time.time() - context.startTime / 1000
        still = time.monotonic() - changed
        if age > REGISTRATION_SECONDS or (wanted is None and still > SETTLED_SECONDS):
            break
        time.sleep(0.2)
        if (now := task_slots(spark)) != slots:
            slots, changed = now, time.monotonic()
    return slots


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks the session can run at once now, on the executors registered now."""
    context = spark.sparkContext
    conf = context.getConf()
    cores = local_cores(str(context.master))
    each = conf.get("spark.executor.cores")
    if cores is None and each:
        cores = (executor_count(context) or 0) * int(each)
    # On a cluster without that setting an executor has all cores of its node; this is their sum.
    cores = cores or int(context.defaultParallelism)
    return cores // int(conf.get("spark.task.cpus", "1") or 1)


def executor_slots(setting: Callable[[str], str | None]) -> int:
    """Return how many tasks one executor runs at once, from ``spark.executor.cores``."""
    # On YARN and Kubernetes an executor has one core by default.
    cores = int(setting("spark.executor.cores") or 1)
    return max(1, cores // int(setting("spark.task.cpus") or 1))


# For how many tasks Spark cuts files; it takes the cores of the executors if it is not set.
_CUTS = "spark.sql.leafNodeDefaultParallelism"
# Settings that blocks of `setting_of_session` have changed.
_changed: WeakKeyDictionary[SparkSession, dict[str, _Changed]] = WeakKeyDictionary()
_changing = threading.Lock()


@dataclass
class _Changed:
    users: str | None
    # What the blocks want that have not ended, the newest last.
    wanted: dict[object, str] = field(default_factory=dict)


@contextmanager
def setting_of_session(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Change a setting of a session for the time of a block; the user's own one comes back.

    Blocks of several threads may overlap. The newest one that has not ended decides, and the user's
    value comes back with the end of the last one.
    """
    block = object()
    with _changing:
        of_session = _changed.setdefault(spark, {})
        changed = of_session.get(name) or _Changed(spark.conf.get(name, None))
        # First, because Spark may refuse the value.
        spark.conf.set(name, value)
        of_session[name] = changed
        changed.wanted[block] = value
    try:
        yield
    finally:
        with _changing:
            del changed.wanted[block]
            if not changed.wanted:
                del of_session[name]
            now = next(reversed(changed.wanted.values()), changed.users)
            if now is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, now)


def read_parallelism(spark: SparkSession) -> int:
    """Return for how many tasks Spark cuts large files now."""
    return int(spark.conf.get(_CUTS, None) or spark.sparkContext.defaultParallelism)


@contextmanager
def planned_for(spark: SparkSession, tasks: int | None) -> Iterator[None]:
    """Let Spark cut files as for so many tasks, whatever cores it has; None changes nothing.

    By default each core of the cluster gets a piece, and the longest pieces are read first. With
    other cores, the rows of the same files may thus come in another order.
    """
    with nullcontext() if tasks is None else setting_of_session(spark, _CUTS, str(tasks)):
        yield


def local_cores(master: str) -> int | None:
    """Return the task threads of a local master, None for any other."""
    match = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if match is None:
        return None
    count = match.group(1) or "1"
    return (os.cpu_count() or 1) if count == "*" else int(count)

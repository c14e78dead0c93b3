"""A job in a thread of its own."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from pyspark import TaskContext

from distkeras_grid.errors import ClusterError, NoSpaceError, NotAuthenticatedError, StorageError
from distkeras_grid.spark.session import READ_ROWS, READ_SETTING
from distkeras_grid.spark.worker_jobs import (
    PIECE,
    PIECE_SETTING,
    WorkerJobs,
    job_error,
    lack_of_slots,
    limit_arrow_batch,
    spark_reason,
)


def jobs_of(frame, task):
    """Return jobs whose tasks have no use for a key."""
    return WorkerJobs(
        frame, lambda _, batches: task(batches), "id long", "test job", lambda seat: bytes([seat])
    )


def wait_until(launch, happened):
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        launch.wait(0.05)


def sleeps(batches):
    time.sleep(60)
    yield from batches


def held_until(path, seats=(0, 1, 2), fails=()):
    """A task that leaves a file, and hands the rows of these seats on when `path` is there."""

    def task(batches):
        seat = TaskContext.get().partitionId()
        (path.parent / f"{seat}-{TaskContext.get().taskAttemptId()}").touch()
        if seat in fails:
            raise ValueError("lost")
        while seat in seats and not path.exists():
            time.sleep(0.02)
        yield from batches

    return task


# As Spark 4.3 words it when YARN has killed every executor that ran the task.
KILLED = """An error occurred while calling o104.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 8.0 failed \
4 times, most recent failure: Lost task 0.3 in stage 8.0 (TID 19) (localhost executor 4): \
ExecutorLostFailure (executor 4 exited caused by one of the running tasks) Reason: Container \
killed by YARN for exceeding physical memory limits. 1.6 GB of 1.5 GB physical memory used. \
Consider boosting spark.executor.memoryOverhead.
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
"""


def test_a_container_killed_for_its_memory_names_the_setting_and_a_number():
    reason = spark_reason(RuntimeError(KILLED))
    error = job_error("ADAG-1", reason, "yarn", 1024)
    assert isinstance(error, ClusterError)
    assert "1.6 GB of 1.5 GB" in str(error)
    assert "set spark.executor.memoryOverhead=1536m (now 1024)" in str(error)
    assert "raise spark.executor.memoryOverhead," in str(job_error("x", reason, "yarn"))


# The cause stands in the middle of what Spark says of a write that failed.
QUOTA = """An error occurred while calling o16.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to hdfs:/a.
\tat org.apache.spark.sql.execution.Something(A.scala:1)
Caused by: org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota of /a is \
exceeded: quota = 1 MB
\tat org.apache.hadoop.hdfs.server.namenode.Something(B.java:1)
\t... 18 more
"""


def test_a_quota_that_is_full_is_no_space_and_says_what_to_do():
    error = job_error("tiling to hdfs:/a", spark_reason(RuntimeError(QUOTA)), "yarn")
    assert isinstance(error, NoSpaceError)
    assert "tiling to hdfs:/a" in str(error)
    assert "quota of /a is exceeded: quota = 1 MB. The directory's quota" in str(error)


# What Spark tells of a task whose disk was full when its rows were written.
SPOOL = """Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times
: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "local_file.py", line 61, in write
OSError: [Errno 28] No space left on device

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "task.py", line 208, in _train_rows
distkeras_grid.errors.NoSpaceError: A worker's rows do not fit on the disk of /disk1.
\tat org.apache.spark.api.python.BasePythonRunner.Something(A.scala:1)
"""


def test_an_error_of_ours_is_told_before_its_own_cause():
    error = job_error("run", spark_reason(RuntimeError(SPOOL)), "yarn")
    assert type(error) is NoSpaceError
    assert str(error) == "A worker's rows do not fit on the disk of /disk1."


def counts(batches):
    yield pa.RecordBatch.from_pydict({"id": [max(batch.nbytes for batch in batches)]})


@pytest.mark.spark
def test_rows_come_in_small_pieces_and_the_setting_stays_the_users(spark):
    before = spark.conf.get(PIECE_SETTING)
    frame = spark.range(0, 80, 1, 1).selectExpr(f"cast(repeat('a', {1 << 18}) as binary) as image")
    launch = jobs_of(frame, counts)
    launch.start()
    assert launch.wait(60)
    assert 8 << 20 < launch.rows()[0].id < 17 << 20
    assert spark.conf.get(PIECE_SETTING) == before


@pytest.mark.spark
@pytest.mark.parametrize("adaptive", ["true", pytest.param("false", marks=pytest.mark.full)])
def test_each_attempt_of_a_seat_has_its_key_and_nobody_else(spark, tmp_path, adaptive):
    def key_of(seat):
        return bytes([seat, 7])

    def deal(batches):
        (tmp_path / f"deal {TaskContext.get().taskAttemptId()}").touch()
        yield from batches

    def task(key, batches):
        context = TaskContext.get()
        seat, attempt = context.partitionId(), context.taskAttemptId()
        (tmp_path / f"work {seat} {key.hex()} {attempt}").touch()
        assert not any(key.hex() in str(each) for each in context._localProperties.values())
        if seat == 1 and not (tmp_path / "healed").exists():
            raise ValueError("lost")
        yield from batches

    setting = "spark.sql.adaptive.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, adaptive)
    frame = spark.range(2, numPartitions=2).mapInArrow(deal, "id long").repartition(2)
    launch = WorkerJobs(frame, task, "id long", "test of keys", key_of)
    try:
        launch.start()
        assert launch.wait(60)
        assert launch.failed == (1,)
        assert isinstance(launch.error(1), ClusterError)
        assert launch.failures_of_a_job == 4
        failed = [path.name.split()[1:] for path in tmp_path.glob("work 1 *")]
        assert {launch.reason_of_loss(1, int(task)) for *_, task in failed} == {"ValueError: lost"}
        assert launch.reason_of_loss(0, int(failed[0][-1])) == launch.reason_of_loss(1, 999) == ""
        (tmp_path / "healed").touch()
        launch.again(1)
        assert launch.wait(60)
    finally:
        spark.conf.set(setting, before)
    assert len(launch.rows()) == 2
    found = [path.name.split()[1:3] for path in tmp_path.glob("work *")]
    # Spark tries four times; the job that is submitted again makes five.
    assert sorted(found) == [["0", "0007"], *[["1", "0107"]] * 5]
    if adaptive == "true":
        assert len([*tmp_path.glob("deal *")]) == 2, "the rows are dealt once for all"


@pytest.mark.spark
def test_a_job_that_fails_leaves_those_of_the_others_alone(spark, tmp_path):
    """Spark ends all jobs whose RDD a failed stage has computed."""
    frame = spark.range(2, numPartitions=2).repartition(2)
    launch = jobs_of(frame, held_until(tmp_path / "go", fails=(0,)))
    launch.start()
    wait_until(launch, lambda: launch.failed)
    assert launch.failed == (0,)
    assert not launch.done
    (tmp_path / "go").touch()
    assert launch.wait(60)
    assert launch.failed == (0,)
    assert len([*tmp_path.glob("1-*")]) == 1


@pytest.mark.spark
def test_the_tasks_of_a_group_start_and_end_together_if_one_of_them_is_lost(spark, tmp_path):
    def task(key, batches):
        context = TaskContext.get()
        number, lost = context.partitionId(), tmp_path / "lost"
        together = context.allGather(str(number))
        (tmp_path / f"{number} {context.taskAttemptId()} {key.hex()} {together}").touch()
        if number == 1 and not lost.exists():
            lost.touch()
            raise ValueError("lost")
        yield from batches

    frame = spark.range(4).repartition(2)
    launch = WorkerJobs(frame, task, "id long", "test of groups", lambda seat: bytes([seat]), 2)
    launch.start()
    assert launch.wait(60)
    assert launch.failed == (0,)
    assert "ValueError: lost" in str(launch.error(0))
    launch.again(0)
    assert launch.wait(60)
    assert sorted(row.id for row in launch.rows()) == [0, 1, 2, 3]
    found = sorted(path.name.split(" ", 2) for path in tmp_path.glob("* *"))
    assert [number for number, *_ in found] == ["0", "0", "1", "1"]
    assert {rest for *_, rest in found} == {"00 ['0', '1']"}


@pytest.mark.spark
def test_a_group_waits_for_its_slots_and_can_be_cancelled_meanwhile(spark):
    """Its executor may be lost. Spark would look every 15 s, and does not cancel what waits."""
    frame = spark.range(64, numPartitions=64)
    launch = WorkerJobs(frame, sleeps, "id long", "too many", lambda _: b"", 64)
    launch.start()
    assert not launch.wait(0.5)
    context, slots = spark.sparkContext, spark.sparkContext.defaultParallelism
    assert f"64 tasks start together, and Spark has {slots} slots" in lack_of_slots(context, 64)
    assert lack_of_slots(context, slots) == ""
    clock = time.monotonic()
    launch.cancel()
    assert launch.done
    assert time.monotonic() - clock < 2


@pytest.mark.spark
def test_cancel_ends_the_job_at_once(spark):
    launch = jobs_of(spark.range(2, numPartitions=2), sleeps)
    launch.start()
    wait_until(launch, spark.sparkContext.statusTracker().getActiveStageIds)
    launch.cancel()
    assert launch.wait(10)
    assert isinstance(launch.error(), ClusterError)
    assert "cancel" in str(launch.error())


@pytest.mark.spark
def test_rows_are_dealt_before_any_worker_has_a_task(spark, tmp_path):
    """So the time that workers have to come begins when they are."""
    frame = spark.range(3, numPartitions=3).mapInArrow(held_until(tmp_path / "deal"), "id long")
    launch = jobs_of(frame.repartition(2), lambda batches: batches)
    launch.start()
    try:
        assert not launch.wait(0.5)
        assert launch.dealing
    finally:
        (tmp_path / "deal").touch()
    assert launch.wait(60)
    assert not launch.dealing
    assert sorted(row.id for row in launch.rows()) == [0, 1, 2]


@pytest.mark.spark
def test_a_task_that_is_killed_is_started_again(spark, tmp_path):
    def attempts():
        return [int(path.name.split("-")[1]) for path in tmp_path.glob("1-*")]

    task = held_until(tmp_path / "go", seats=(1,))
    launch = jobs_of(spark.range(2, numPartitions=2).repartition(2), task)
    launch.start()
    wait_until(launch, attempts)
    launch.restart(attempts()[0])
    wait_until(launch, lambda: len(attempts()) == 2)
    (tmp_path / "go").touch()
    assert launch.wait(60)
    assert sorted(row.id for row in launch.rows()) == [0, 1]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("java.io.IOException: No space left on device", NoSpaceError),
        (
            "org.apache.BlockMissingException: Could not obtain block: BP-1",
            StorageError,
        ),
        (
            "org.apache.hadoop.hdfs.server.namenode.SafeModeException: Cannot create directory "
            "/x. Name node is in safe mode.",
            StorageError,
        ),
        (
            "java.io.IOException: /x could only be written to 0 of the 1 minReplication nodes. "
            "There are 0 datanode(s) running and 0 node(s) are excluded in this operation.",
            StorageError,
        ),
        (
            "org.apache.hadoop.security.AccessControlException: Client cannot authenticate "
            "via:[TOKEN, KERBEROS]",
            NotAuthenticatedError,
        ),
        ("java.io.FileNotFoundException: /in/b/3.png (Permission denied)", StorageError),
        (
            "org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error "
            "while reading file file:///in/b/3.png. File does not exist.",
            StorageError,
        ),
        (
            "org.apache.hadoop.security.AccessControlException: Permission denied: user=ada, "
            'access=READ, inode="/in/b/3.png":bob:lab:-rw-------',
            StorageError,
        ),
    ],
)
def test_the_reason_of_a_job_that_cannot_use_its_files_chooses_the_error(
    line: str, kind: type[Exception]
):
    reason = spark_reason(RuntimeError(f"Job aborted: Task 0 failed\nCaused by: {line}\nmore"))
    assert reason == line
    assert type(job_error("run", reason, "local[2,4]")) is kind


@pytest.mark.spark
@pytest.mark.parametrize(("users", "rows"), [("4096", READ_ROWS), ("16", "16")])
def test_few_rows_of_parquet_are_read_at_once_and_a_smaller_number_stays(spark, users, rows):
    before = spark.conf.get(READ_SETTING)
    spark.conf.set(READ_SETTING, users)
    try:
        with limit_arrow_batch(spark):
            assert spark.conf.get(PIECE_SETTING) == PIECE
            assert spark.conf.get(READ_SETTING) == rows
        assert spark.conf.get(READ_SETTING) == users
    finally:
        spark.conf.set(READ_SETTING, before)

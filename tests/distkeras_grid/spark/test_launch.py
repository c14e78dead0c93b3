"""A job in a thread of its own."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from distkeras_grid.errors import ClusterError, NoSpaceError, NotAuthenticatedError, StorageError
from distkeras_grid.parameter_server.watch import RowsTasks
from distkeras_grid.spark.launch import (
    PIECE,
    PIECE_SETTING,
    Launch,
    job_error,
    small_pieces,
    spark_reason,
)
from distkeras_grid.worker.own_half import PROPERTY


def launched(spark, task):
    launch = Launch(spark.range(2, numPartitions=2), task, "id long", "test job")
    launch.start()
    return launch


def passes(batches):
    yield from batches


def fails(batches):
    for _ in batches:
        raise ValueError("the fourth row is blue")
    yield


def sleeps(batches):
    import time

    time.sleep(60)
    yield from batches


def held_until(path):
    """A task that hands its rows on when there is a file."""

    def task(batches):
        import time

        while not path.exists():
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
    assert "1.6 GB used of 1.5 GB" in str(error)
    # 1.25 x 1638 - 1536 more than now, in steps of 64.
    assert "set spark.executor.memoryOverhead=1536m (now 1024)" in str(error)
    assert "raise spark.executor.memoryOverhead by 512 MB" in str(job_error("x", reason, "yarn"))


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


@pytest.mark.spark
def test_rows_come_back(spark):
    launch = launched(spark, passes)
    assert launch.wait(30)
    assert sorted(row.id for row in launch.result()) == [0, 1]


def counts(batches):
    import pyarrow as pa

    yield pa.RecordBatch.from_pydict({"id": [max(batch.nbytes for batch in batches)]})


@pytest.mark.spark
def test_rows_come_in_small_pieces_and_the_setting_stays_the_users(spark):
    before = spark.conf.get(PIECE_SETTING)
    frame = spark.range(0, 80, 1, 1).selectExpr(f"cast(repeat('a', {1 << 18}) as binary) as image")
    launch = Launch(frame, counts, "id long", "pieces")
    launch.start()
    assert launch.wait(60)
    assert 8 << 20 < launch.result()[0].id < 17 << 20
    assert spark.conf.get(PIECE_SETTING) == before


@pytest.mark.spark
def test_a_failing_task_is_told_by_its_own_words(spark):
    launch = launched(spark, fails)
    assert launch.wait(60)
    with pytest.raises(ClusterError, match="the fourth row is blue"):
        launch.result()


@pytest.mark.spark
def test_a_job_that_failed_is_submitted_again_alone(spark, tmp_path):
    def task(batches):
        from pyspark import TaskContext

        context = TaskContext.get()
        seat, attempt = context.partitionId(), context.taskAttemptId()
        (tmp_path / f"{seat}-{attempt}").touch()
        if seat == 1 and not (tmp_path / "healed").exists():
            raise ValueError("lost")
        yield from batches

    launch = launched(spark, task)
    assert launch.wait(60)
    assert launch.failed == (1,)
    assert isinstance(launch.error(1), ClusterError)
    (tmp_path / "healed").touch()
    launch.again(1)
    assert launch.wait(60)
    assert sorted(row.id for row in launch.result()) == [0, 1]
    assert launch.failures_of_a_job == 4
    assert [len([*tmp_path.glob(f"{seat}-*")]) for seat in (0, 1)] == [1, 5]


@pytest.mark.spark
@pytest.mark.parametrize("adaptive", ["true", pytest.param("false", marks=pytest.mark.full)])
def test_each_attempt_of_a_seat_has_its_secret_and_nobody_else(spark, tmp_path, adaptive):
    def secret_of(seat):
        return bytes([seat, 7])

    def told():
        from pyspark import TaskContext

        return str(TaskContext.get().getLocalProperty(PROPERTY))

    def deal(batches):
        (tmp_path / f"deal {told()}").touch()
        yield from batches

    def task(batches):
        from pyspark import TaskContext

        context = TaskContext.get()
        seat, attempt = context.partitionId(), context.taskAttemptId()
        (tmp_path / f"work {seat} {told()} {attempt}").touch()
        if seat == 1 and not (tmp_path / "healed").exists():
            raise ValueError("lost")
        yield from batches

    def own(batches):
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"told": [told()]})

    setting = "spark.sql.adaptive.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, adaptive)
    frame = spark.range(2, numPartitions=2).mapInArrow(deal, "id long").repartition(2)
    launch = Launch(frame, task, "id long", "test of secrets", secret_of)
    try:
        launch.start()
        assert launch.wait(60)
        failed = [path.name.split()[1:] for path in tmp_path.glob("work 1 *")]
        assert {launch.reason_of_loss(1, int(task)) for *_, task in failed} == {"ValueError: lost"}
        assert launch.reason_of_loss(0, int(failed[0][-1])) == launch.reason_of_loss(1, 999) == ""
        (tmp_path / "healed").touch()
        launch.again(1)
        assert launch.wait(60)
    finally:
        spark.conf.set(setting, before)
    assert len(launch.result()) == 2
    found = [path.name.split()[1:3] for path in tmp_path.glob("work *")]
    # Spark tries four times; the job that is submitted again makes five.
    assert sorted(found) == [["0", "0007"], *[["1", "0107"]] * 5]
    if adaptive == "true":
        assert [path.name for path in tmp_path.glob("deal *")] == ["deal None"]
    assert spark.sparkContext.getLocalProperty(PROPERTY) is None
    (row,) = spark.range(1, numPartitions=1).mapInArrow(own, "told string").collect()
    assert row.told == "None"


@pytest.mark.spark
def test_a_job_that_fails_leaves_those_of_the_others_alone(spark, tmp_path):
    """Spark ends all jobs whose RDD a failed stage has computed."""

    def task(batches):
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        (tmp_path / f"{context.partitionId()}-{context.taskAttemptId()}").touch()
        if context.partitionId() == 0:
            raise ValueError("lost")
        while not (tmp_path / "go").exists():
            time.sleep(0.02)
        yield from batches

    frame = spark.range(2, numPartitions=2).repartition(2)
    launch = Launch(frame, task, "id long", "test of failing jobs")
    launch.start()
    deadline = time.monotonic() + 60
    while not launch.failed:
        assert time.monotonic() < deadline
        launch.wait(0.05)
    assert launch.failed == (0,)
    assert not launch.done
    (tmp_path / "go").touch()
    assert launch.wait(60)
    assert launch.failed == (0,)
    assert len([*tmp_path.glob("1-*")]) == 1


@pytest.mark.spark
def test_cancel_ends_the_job_at_once(spark):
    launch = launched(spark, sleeps)
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 30
    while not tracker.getActiveStageIds() and time.monotonic() < deadline:
        launch.wait(0.05)
    launch.cancel()
    assert launch.wait(10)
    with pytest.raises(ClusterError, match="cancel"):
        launch.result()


@pytest.mark.spark
@pytest.mark.parametrize("adaptive", ["true", pytest.param("false", marks=pytest.mark.full)])
def test_tasks_that_prepare_the_rows_are_told_from_those_of_workers(spark, tmp_path, adaptive):
    """An adaptive plan deals the rows before any worker has a job; another one in their jobs."""
    setting = "spark.sql.adaptive.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, adaptive)
    deal, work = held_until(tmp_path / "deal"), held_until(tmp_path / "work")
    frame = spark.range(3, numPartitions=3).mapInArrow(deal, "id long").repartition(2)
    launch = Launch(frame, work, "id long", f"test of dealing {adaptive}")
    try:
        assert launch.dealing
        assert launch.rows_tasks([0, 1])[1] == RowsTasks(0, 0, dealing=True)
        launch.start()
        told = wait_for(lambda: launch.rows_tasks([0, 1]).get(1), lambda told: told.running)
        assert told == RowsTasks(0, told.running, dealing=adaptive == "true")
        assert launch.dealing == told.dealing
        assert launch.phase == "dealing the rows"
        assert launch.running([0, 1]) == {}
        (tmp_path / "deal").touch()
        assert wait_for(lambda: launch.phase, "starting the workers".__eq__)
        assert not launch.dealing
        assert not any(told.awaited for told in launch.rows_tasks([0, 1]).values())
    finally:
        for name in ("deal", "work"):
            (tmp_path / name).touch()
        launch.wait(60)
        spark.conf.set(setting, before)
    assert sorted(row.id for row in launch.result()) == [0, 1, 2]


def wait_for(ask, holds):
    """Return the first answer that is told and holds."""
    deadline = time.monotonic() + 60
    while not ((told := ask()) and holds(told)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return told


@pytest.mark.spark
def test_the_running_attempt_of_each_seat_is_told(spark, tmp_path):
    """Not those of the stage that only reads, which have the same numbers of partitions."""

    def task(batches):
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        (tmp_path / f"{context.partitionId()}-{context.taskAttemptId()}").touch()
        while context.partitionId() == 1 and not (tmp_path / "go").exists():
            time.sleep(0.02)
        yield from batches

    frame = spark.range(2, numPartitions=2).repartition(2)
    launch = Launch(frame, task, "id long", "test of running tasks")
    assert launch.running([0, 1]) == {}
    launch.start()
    deadline = time.monotonic() + 60
    while len(launch.running([0, 1])) != 1 or not list(tmp_path.glob("1-*")):
        assert time.monotonic() < deadline
        launch.wait(0.05)
    (first,) = tmp_path.glob("1-*")
    attempt = int(first.name.split("-")[1])
    assert launch.running([0, 1]) == launch.running([1]) == {1: attempt}
    launch.restart(attempt)
    while launch.running([1]) in ({}, {1: attempt}):
        assert time.monotonic() < deadline
        launch.wait(0.05)
    (tmp_path / "go").touch()
    assert launch.wait(60)
    assert launch.running([0, 1]) == {}
    assert sorted(row.id for row in launch.result()) == [0, 1]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("java.io.IOException: No space left on device", NoSpaceError),
        (
            "org.apache.BlockMissingException: Could not obtain block: BP-1",
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
def test_a_full_disk_is_told_from_datanodes_that_are_missing(line: str, kind: type[Exception]):
    reason = spark_reason(RuntimeError(f"Job aborted: Task 0 failed\nCaused by: {line}\nmore"))
    assert reason == line
    assert type(job_error("run", reason, "local[2,4]")) is kind


@pytest.mark.spark
def test_pieces_stay_small_until_the_last_of_two_runs_ends(spark):
    before = spark.conf.get(PIECE_SETTING, None)
    first, second = ExitStack(), ExitStack()
    first.enter_context(small_pieces(spark))
    second.enter_context(small_pieces(spark))
    first.close()
    assert spark.conf.get(PIECE_SETTING) == PIECE
    second.close()
    assert spark.conf.get(PIECE_SETTING, None) == before

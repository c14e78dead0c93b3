"""What Spark still does for an interrupted driver is stopped, whatever the interrupt broke."""

import time
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import InheritableThread, SparkContext

from distkeras_grid.spark.cancel import stop_work


class Context:
    """A driver's SparkContext, whose first calls fail."""

    def __init__(self, fails, error=None):
        self.fails, self.error = fails, error or Py4JNetworkError("Answer from Java side is empty")
        self.running, self.levels = 1, []
        log = SimpleNamespace(LogManager=SimpleNamespace(getRootLogger=self._root))
        logging = SimpleNamespace(log4j=log)
        self._jvm = SimpleNamespace(
            org=SimpleNamespace(apache=SimpleNamespace(logging=logging)),
        )
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(taskScheduler=lambda: self))

    def _call(self):
        if self.fails:
            self.fails -= 1
            raise self.error

    def _root(self):
        self._call()
        return SimpleNamespace(getLevel=lambda: "ERROR")

    def setLogLevel(self, level):
        self._call()
        self.levels.append(level)

    def cancelAllJobs(self):
        self._call()
        self.running = 0

    def runningTasksByExecutors(self):
        self._call()
        counts = [self.running]
        numbers = SimpleNamespace(hasNext=lambda: bool(counts), next=counts.pop)
        return SimpleNamespace(valuesIterator=lambda: numbers)


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_a_connection_that_the_interrupt_has_broken_keeps_no_job_alive(monkeypatch, fails):
    context = Context(fails)
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    stop_work()
    assert context.running == 0
    assert (context.levels[0], context.levels[-1]) == ("OFF", "ERROR")


@pytest.mark.parametrize("error", [ConnectionRefusedError(), Py4JNetworkError("gone")])
def test_nothing_is_waited_for_if_the_jvm_is_gone(monkeypatch, error):
    monkeypatch.setattr(SparkContext, "_active_spark_context", Context(10_000, error))
    began = time.monotonic()
    stop_work()
    assert time.monotonic() - began < 5.0


def test_a_context_that_an_interrupt_has_left_half_stopped_has_no_jobs(monkeypatch):
    context = Context(0)
    context._jsc = None
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    stop_work()
    assert context.levels == []


def tasks_of(status):
    """How many tasks run."""
    stages = map(status.getStageInfo, status.getActiveStageIds())
    return sum(stage.numActiveTasks for stage in stages if stage)


@pytest.mark.full
@pytest.mark.spark
def test_jobs_that_come_again_are_cancelled_again(spark):
    """An interrupt closes connections of other threads, too; Py4J sends their commands anew."""
    context, submitted = spark.sparkContext, []

    def task(_):
        time.sleep(60.0)

    def run():
        for number in (1, 2):
            submitted.append(number)
            try:
                context.parallelize([0], 1).foreach(task)
            except Exception:  # noqa: BLE001 - whatever says that it was cancelled
                continue

    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    status, until = context.statusTracker(), time.monotonic() + 30.0
    while not tasks_of(status) and time.monotonic() < until:
        time.sleep(0.05)
    assert tasks_of(status)
    stop_work(30.0)
    thread.join(1.0)
    assert submitted == [1, 2]
    assert not thread.is_alive()
    assert not status.getActiveJobsIds()

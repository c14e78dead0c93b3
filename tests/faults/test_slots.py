"""Slots that go away for good, and slots that come late, on a cluster of its own."""

from __future__ import annotations

import pytest

from tests.cluster import standalone_cluster
from tests.faults.counting import WAITS, end, wait_until
from tests.faults.test_matrix import attempts_of, check, result_in, run, start

pytestmark = [pytest.mark.full, pytest.mark.faults, pytest.mark.cluster, pytest.mark.tensorflow]


@pytest.mark.promise(
    "executor: killed, and its slot does not come back",
    "Trainers without rounds go on; its worker comes when another one has finished; exact.",
)
def test_a_worker_whose_slot_is_gone_trains_when_another_one_has_finished(project, tmp_path):
    with standalone_cluster(tmp_path, workers=3) as cluster:
        result = run(cluster, project, tmp_path, fault="slot", arguments={"num_workers": 3})
    check(result, [2, 1, 1], kind="joined")
    # The others had finished before it came again.
    last = attempts_of(result, 0, "joined")[-1]
    windows = [attempt for _, attempt in result["seats"]]
    others = {attempt for seat, attempt in result["joined"] if seat != 0}
    newest = max(place for place, attempt in enumerate(windows) if attempt in others)
    assert sum(attempt == last for attempt in windows[newest:]) > 0


@pytest.mark.promise(
    "executors: come and go by dynamic allocation, and one is killed",
    "Spark brings another one; exact.",
)
def test_executors_that_spark_allocates_while_the_run_goes_on(project, tmp_path):
    """None is there when the run begins. One without work goes after a second."""
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    }
    with standalone_cluster(tmp_path, workers=2) as cluster:
        result = run(cluster, project, tmp_path, fault="executor", conf=conf)
    check(result, [2], kind="joined")


@pytest.mark.promise(
    "executor: is decommissioned",
    "Spark gives it no further task; its worker trains to the end, in its first attempt; exact.",
)
def test_the_worker_of_a_decommissioned_executor_trains_to_the_end(project, tmp_path):
    conf = {"spark.decommission.enabled": "true"}
    with standalone_cluster(tmp_path, workers=2) as cluster:
        result = run(cluster, project, tmp_path, fault="decommissioned", conf=conf)
        told = [log.read_text() for log in tmp_path.rglob("stderr")]
    assert sum("Finished decommissioning" in text for text in told) == 1
    check(result, [1, 1], kind="joined")


@pytest.mark.promise(
    "executor: comes after the run has begun without it",
    "Trainers without rounds take its worker; exact.",
)
def test_a_worker_whose_slot_comes_late_trains_beside_the_others(project, tmp_path):
    """The others wait in their batches until it has come."""
    settings = {
        "fault": "wait",
        "waits_for": 2,
        "at_epoch": 1,
        "arguments": {"num_workers": 3, "start_timeout": 60.0, "jit": False},
    }
    with standalone_cluster(tmp_path, workers=2) as cluster:
        driver = start(cluster, project, tmp_path, **settings)
        begun = tmp_path / "disturbed" / WAITS
        try:
            wait_until(lambda: begun.exists() or driver.poll() is not None, 360.0)
        finally:
            with cluster.worker("late"):
                end(driver)
    result = result_in(tmp_path)
    check(result, [1, 1, 1], kind="joined")
    seats = [seat for seat, _ in result["seats"]]
    # It has not waited for the slot of another one.
    assert seats.index(2) < max(place for place, seat in enumerate(seats) if seat != 2)

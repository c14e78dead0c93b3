"""The arithmetic of containers."""

import re
from dataclasses import replace

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.spark.doctor import CheckLevel
from distkeras_grid.spark.memory import (
    MB,
    SERVER_MB,
    ExecutorContainer,
    ModelSize,
    check_containers,
    driver_overhead_mb,
    executor_overhead_mb,
    megabytes,
    python_limit_mb,
)

SMALL = ModelSize(weights=70_000, block_bytes=MB)


def findings(model=SMALL, master="yarn", slots=1, workers=2, **settings):
    named = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    return check_containers(named.get, master, model, slots=slots, workers=workers)


@pytest.mark.parametrize(
    ("weights", "optimizer_slots", "measured"),
    # Peak resident memory of a worker's Python process on YARN, nets of dense layers.
    [(69_955, 2, 823), (6_058_003, 2, 1261), (6_058_003, 0, 1121)],
)
def test_what_was_measured_fits_and_little_more_is_asked(weights, optimizer_slots, measured):
    needed = ModelSize(weights, optimizer_slots, block_bytes=0).worker_mb
    assert measured <= needed < 1.05 * measured


def test_a_larger_model_more_slots_and_batches_need_more():
    base = executor_overhead_mb(SMALL)
    assert base == executor_overhead_mb(SMALL, slots=1) < executor_overhead_mb(SMALL, slots=2)
    assert base < executor_overhead_mb(ModelSize(10_000_000, block_bytes=MB))
    assert base < executor_overhead_mb(ModelSize(70_000, block_bytes=100 * MB))
    large = ModelSize(20_000_000)
    # A vector of the server for each worker, and that of the worker, mapped.
    assert driver_overhead_mb(large, 8) - driver_overhead_mb(large, 2) == pytest.approx(915, abs=64)


def test_a_container_as_spark_asks_for_it():
    assert ExecutorContainer.of({}.get, "executor") == ExecutorContainer("executor", 1024, 384)
    large = {"spark.executor.memory": "10g"}
    assert ExecutorContainer.of(large.get, "executor").overhead_mb == 1024
    part = {**large, "spark.executor.memoryOverheadFactor": "0.25"}
    assert ExecutorContainer.of(part.get, "executor").overhead_mb == 2560
    told = {**part, "spark.executor.memoryOverhead": "700"}
    assert ExecutorContainer.of(told.get, "executor") == ExecutorContainer("executor", 10240, 700)
    least = {"spark.driver.memory": "512m", "spark.driver.minMemoryOverhead": "1g"}
    assert ExecutorContainer.of(least.get, "driver") == ExecutorContainer("driver", 512, 1024)


def test_a_container_that_is_too_small_names_setting_and_value():
    (found,) = findings(executor_memory="512m")
    assert found.level is CheckLevel.BAD
    assert "Received: 384 MB" in found.text
    (value,) = re.findall(r"Set spark\.executor\.memoryOverhead=(\d+)m\.", found.text)
    (found,) = findings(executor_memory="512m", executor_memoryOverhead=f"{value}m")
    assert found.level is CheckLevel.OK
    (found,) = findings(executor_memory="512m", executor_memoryOverhead=f"{int(value) - 1}m")
    assert found.level is CheckLevel.BAD


def test_each_server_is_a_process_that_maps_vectors_of_its_workers_up_to_a_limit():
    large = ModelSize(100 * MB)
    one, more = large.driver_mb(8), replace(large, servers=3)
    assert more.driver_mb(8) - one == pytest.approx(2 * (SERVER_MB + 1024))
    assert more.worker_mb == large.worker_mb
    assert large.driver_mb(9) - one == pytest.approx(400)


def test_workers_that_are_never_on_one_executor_are_not_counted():
    needed = executor_overhead_mb(SMALL)
    enough = {"executor_cores": "4", "executor_memoryOverhead": f"{needed}m"}
    assert [f.level for f in findings(slots=4, workers=1, **enough)] == [CheckLevel.OK]
    assert [f.level for f in findings(slots=4, workers=2, **enough)] == [CheckLevel.BAD]


def test_the_driver_counts_where_it_runs_in_a_container():
    told = {"executor_memoryOverhead": "8g"}
    assert len(findings(**told)) == 1
    executor, driver = findings(submit_deployMode="cluster", **told)
    assert (executor.level, driver.level) == (CheckLevel.OK, CheckLevel.BAD)
    (value,) = re.findall(r"Set spark\.driver\.memoryOverhead=(\d+)m", driver.text)
    assert int(value) == driver_overhead_mb(SMALL, 2)


def test_elsewhere_nobody_limits_python():
    assert findings(master="spark://host:7077") == []
    assert findings(master="local[2]") == []
    # Kubernetes' overhead is larger by itself.
    (found,) = findings(master="k8s://https://host", executor_memory="4g")
    assert found.level is CheckLevel.OK
    settings = {"spark.executor.memory": "8g"}
    for master, limit in (("local[2,4]", None), ("spark://node:7077", None), ("yarn", 819)):
        assert python_limit_mb(settings.get, master) == limit


@pytest.mark.parametrize("text", ["", "much", "1.5g", "-1m"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigurationError, match="512m or 2g"):
        megabytes(text)

"""What the doctor says of settings and paths."""

import pytest

from distkeras_grid.errors import (
    ClusterError,
    ConfigurationError,
    NotEnoughSlotsError,
    StorageError,
)
from distkeras_grid.spark.doctor import (
    CheckLevel,
    CheckResult,
    as_check_result,
    check_encryption,
    check_gpus,
    check_hadoop,
    check_scheduling,
    check_slots,
    check_storage,
    describe_executors,
    raise_or_collect,
)
from distkeras_grid.spark.storage import Storage

GPU = "spark.task.resource.gpu.amount"
HELD = "spark.executor.resource.gpu.amount"


def levels(findings):
    return [finding.level for finding in findings]


def test_the_first_bad_finding_is_raised_as_its_own_error():
    findings = [
        CheckResult("a", CheckLevel.WARN, "slow"),
        CheckResult("b", CheckLevel.BAD, "few slots", NotEnoughSlotsError),
        CheckResult("c", CheckLevel.BAD, "wrong"),
    ]
    with pytest.raises(NotEnoughSlotsError, match="few slots"):
        raise_or_collect(findings)
    assert raise_or_collect(findings[:1]) == ["slow"]


def test_an_error_of_ours_becomes_a_finding_and_any_other_passes():
    def refuse():
        raise StorageError("read only")

    found = as_check_result("storage", refuse)
    assert (found.level, found.text, found.error) == (CheckLevel.BAD, "read only", StorageError)
    assert as_check_result("storage", lambda: "fine") == CheckResult(
        "storage", CheckLevel.OK, "fine"
    )
    with pytest.raises(ZeroDivisionError):
        as_check_result("storage", lambda: str(1 / 0))


def test_workers_without_a_slot():
    assert check_slots(4, 4).level is CheckLevel.OK
    assert "num_workers is 4" in check_slots(4, None).text
    few = check_slots(2, 3)
    assert (few.level, few.error) == (CheckLevel.BAD, NotEnoughSlotsError)
    assert "spark.executor.instances" in few.text
    assert check_slots(2, 3, together=False).level is CheckLevel.WARN


def test_speculation_is_bad_and_dynamic_allocation_a_warning():
    assert levels(check_scheduling({}.get)) == [CheckLevel.OK, CheckLevel.OK]
    speculation, _ = check_scheduling({"spark.speculation": "true"}.get)
    assert speculation.level is CheckLevel.BAD
    assert "spark.speculation=false" in speculation.text
    dynamic = {"spark.dynamicAllocation.enabled": "true", "spark.master": "yarn"}
    _, allocation = check_scheduling(dynamic.get)
    assert allocation.level is CheckLevel.WARN
    assert "spark.executor.instances" in allocation.text
    _, allocation = check_scheduling({**dynamic, "spark.master": "local[2]"}.get, barrier=True)
    assert allocation.level is CheckLevel.OK


def test_tasks_that_share_a_model_need_executors_that_stay():
    """Spark starts no barrier stage with them."""
    dynamic = {"spark.dynamicAllocation.enabled": "true", "spark.master": "yarn"}
    with pytest.raises(ConfigurationError, match="dynamicAllocation"):
        raise_or_collect(check_scheduling(dynamic.get, barrier=True))


def test_a_gpu_has_one_worker_unless_sharing_is_meant():
    assert check_gpus({}.get) == []
    (whole,) = check_gpus({GPU: "1", HELD: "1"}.get)
    assert whole.level is CheckLevel.OK
    shared = {GPU: "0.25", HELD: "1"}
    (refused,) = check_gpus(shared.get)
    assert refused.level is CheckLevel.BAD
    assert "4 workers would share" in refused.text
    assert levels(check_gpus(shared.get, sharing=True)) == [CheckLevel.OK]


def test_gpus_that_tasks_do_not_get_or_would_swap():
    (unused,) = check_gpus({HELD: "2"}.get)
    assert unused.level is CheckLevel.WARN
    several = {GPU: "1", HELD: "2"}
    (swapped,) = check_gpus(several.get)
    assert (swapped.level, "worker.reuse=false" in swapped.text) == (CheckLevel.BAD, True)
    fresh = {**several, "spark.python.worker.reuse": "false"}
    assert levels(check_gpus(fresh.get)) == [CheckLevel.OK]


def test_the_configuration_of_hadoop_that_yarn_needs():
    both = ["core-site.xml", "yarn-site.xml", "log4j.properties"]
    found = check_hadoop("yarn", "/etc/hadoop", both)
    assert found.text == "HADOOP_CONF_DIR=/etc/hadoop: core-site.xml, yarn-site.xml"
    unset = check_hadoop("yarn", None, [])
    assert (unset.level, unset.error) == (CheckLevel.BAD, ClusterError)
    assert "HADOOP_CONF_DIR is not set" in unset.text
    assert "has no yarn-site.xml" in check_hadoop("yarn", "/etc/hadoop", both[:1]).text
    # In cluster mode the driver's container has no such variable.
    assert check_hadoop("yarn", None, [], submitted=True).level is CheckLevel.OK
    assert check_hadoop("local[2]", None, []).level is CheckLevel.OK
    assert check_hadoop("spark://a:7077", "/etc/hadoop", []).level is CheckLevel.OK


@pytest.mark.spark
def test_storage_is_written_read_and_left_as_it_was(spark, tmp_path):
    storage = Storage(spark)
    assert f"{tmp_path} can be written" in check_storage(storage, str(tmp_path))
    # What does not exist yet is not made, either.
    said = check_storage(storage, f"{tmp_path}/runs/first/")
    assert f"{tmp_path} can be written" in said
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="exists"):
        check_storage(storage, f"{tmp_path}/file/runs")


def test_executors_are_described_and_other_interpreters_named():
    answers = [
        {"host": host, "executable": path, "python": "3.11", "packages": {"keras": "3.15.1"}}
        for host, path in [("node2", "/their/python"), ("node1", "/my/python")]
    ]
    assert describe_executors(answers, "/my/python") == (
        "the same on the driver and on node1, node2 (/their/python): Python 3.11, keras 3.15.1"
    )


@pytest.mark.parametrize(
    ("settings", "driver", "level"),
    [
        ({}, "10.0.0.5", CheckLevel.WARN),
        ({}, "node7.example.org", CheckLevel.WARN),
        ({}, "127.0.0.1", CheckLevel.OK),
        ({}, "::1", CheckLevel.OK),
        ({}, "localhost", CheckLevel.OK),
        ({"spark.network.crypto.enabled": "false"}, "10.0.0.5", CheckLevel.WARN),
        ({"spark.network.crypto.enabled": "true"}, "10.0.0.5", CheckLevel.OK),
        ({"spark.ssl.rpc.enabled": "true"}, "10.0.0.5", CheckLevel.OK),
    ],
)
def test_keys_that_cross_a_network_unencrypted_are_a_warning(settings, driver, level):
    assert check_encryption(settings.get, driver).level is level

"""What `submit` knows of the driver that it is about to start."""

from __future__ import annotations

import inspect
from contextlib import nullcontext

import pytest

from distkeras_grid.cli import preflight
from distkeras_grid.cli.submit import build_parser, check_job, planned
from distkeras_grid.cli.submit_options import SubmittedDriver
from distkeras_grid.cli.verbs import VERBS
from distkeras_grid.errors import (
    NotEnoughSlotsError,
    OutputExistsError,
    PathNotFoundError,
)

CLUSTER = ("--deploy-mode", "cluster")
STANDALONE = ("--master", "spark://host:7077")
DATA = ("--data", "hdfs:///tiles")
TRAIN = ("train", *DATA, "--output", "hdfs:///runs/first", "--model", "nets:net")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a run, on a machine that knows no cluster."""
    monkeypatch.chdir(tmp_path)
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path


@pytest.fixture
def configured(here, monkeypatch):
    """Hadoop's configuration, whose default file system is HDFS."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(here))
    (here / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name>"
        "<value>hdfs://node:8020</value></property></configuration>"
    )


def check(*arguments):
    flags = build_parser().parse_args(arguments)
    check_job(flags, planned(flags))


def driver(*arguments):
    return SubmittedDriver(planned(build_parser().parse_args([*arguments, "compact", *DATA])))


def test_files_of_a_containers_host_are_not_looked_for_here(configured):
    at_lost, at_run = ("--data", "file:/lost"), ("--output", "file:run", "--overwrite")
    check(*CLUSTER, "compact", *at_lost)
    check(*CLUSTER, "predict", *DATA, "--model", "hdfs:///m.keras", *at_run[:2])
    with pytest.raises(PathNotFoundError):
        check("compact", *at_lost)
    with pytest.raises(OutputExistsError):
        check("predict", *DATA, "--model", "hdfs:///m.keras", *at_run[:2])


def test_a_path_without_a_scheme_is_where_hadoops_configuration_says(configured, monkeypatch):
    for mode in ((), CLUSTER):
        assert isinstance(driver(*mode).files_of("/tiles"), preflight.WebFiles)
        assert isinstance(driver(*mode).files_of("hdfs:///tiles"), preflight.WebFiles)
        assert driver(*mode).files_of("s3a://bucket/tiles") is None
        # The submission overrides it, or Spark's own configuration may.
        anew = ("--conf", "spark.hadoop.fs.defaultFS=s3a://bucket", *mode)
        assert driver(*anew).files_of("/tiles") is None
        # This has no host: it is on the default file system, too.
        elsewhere = ("--conf", "spark.hadoop.fs.defaultFS=hdfs://other:8020", *mode)
        assert driver(*elsewhere).files_of("hdfs:///tiles") is None
        assert isinstance(driver(*elsewhere).files_of("hdfs://node:8020/tiles"), preflight.WebFiles)
    assert isinstance(preflight.HERE.files_of("hdfs:///tiles"), preflight.WebFiles)
    # So may the submission whose driver this process is.
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert preflight.HERE.files_of("hdfs:///tiles") is None
    assert isinstance(preflight.HERE.files_of("hdfs://node:8020/tiles"), preflight.WebFiles)
    monkeypatch.setenv("SPARK_CONF_DIR", "/conf")
    assert driver().files_of("/tiles") is None


def test_what_spark_itself_names_as_the_default_file_system_is_left_to_it(monkeypatch, tmp_path):
    """A path without a host was looked for on that of Hadoop's configuration, and refused."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert isinstance(preflight.HERE.files_of("hdfs:///tiles"), preflight.WebFiles)
    defaults = tmp_path / "spark-defaults.conf"
    defaults.write_text("# spark.hadoop.fs.defaultFS  no\nspark.ui.enabled false\n")
    assert isinstance(preflight.HERE.files_of("hdfs:///tiles"), preflight.WebFiles)
    for line in ("spark.hadoop.fs.defaultFS hdfs://other:8020", "spark.hadoop.fs.default.name=x"):
        defaults.write_text(f"spark.ui.enabled false\n  {line}\n")
        assert preflight.HERE.files_of("hdfs:///tiles") is None
        assert driver().files_of("hdfs:/tiles") is None
        assert isinstance(preflight.HERE.files_of("hdfs://node:8020/tiles"), preflight.WebFiles)
        assert isinstance(preflight.HERE.files_of("file:///tiles"), preflight.LocalFiles)


def test_without_hadoops_configuration_a_path_is_of_this_machine(monkeypatch):
    assert isinstance(driver(*STANDALONE).files_of("/tiles"), preflight.LocalFiles)
    assert driver(*CLUSTER).files_of("/tiles") is None
    # Spark takes the default file system from there, too.
    monkeypatch.setenv("YARN_CONF_DIR", "/conf")
    assert driver().files_of("/tiles") is None
    assert preflight.HERE.files_of("/tiles") is None


@pytest.mark.parametrize(
    ("flags", "slots"),
    [
        ((), 2),
        (("--executors", "3", "--executor-cores", "2"), 6),
        (("--executors", "3", "--executor-cores", "2", "--conf", "spark.task.cpus=2"), 3),
        (("--conf", "spark.executor.instances=4"), 4),
        (("--conf", "spark.executor.cores=5"), 10),
        (("--conf", "spark.dynamicAllocation.enabled=true"), None),
        (("--conf", "spark.executor.instances=many"), None),
        ((*STANDALONE, "--executors", "3", "--executor-cores", "2"), 6),
        ((*STANDALONE, "--conf", "spark.cores.max=7", "--executor-cores", "2"), 6),
    ],
)
def test_a_submission_has_a_slot_for_each_worker(flags, slots):
    (place,) = {driver(*flags).slots(None), driver(*flags).slots("local[64]")}
    assert place == slots
    train = (*flags, *TRAIN, "--workers")
    if slots is None:
        check(*train, "100")
    else:
        check(*train, str(slots))
        with pytest.raises(NotEnoughSlotsError):
            check(*train, str(slots + 1))


@pytest.mark.parametrize(
    ("trainer", "waits"),
    [
        ("DOWNPOUR", True),
        ("AEASGD", True),
        ("EASGD", False),
        ("SynchronousSGD", False),
        ("ConvolutionSplit", False),
    ],
)
def test_workers_without_rounds_may_wait_for_a_slot(trainer, waits):
    train = (*TRAIN, "--trainer", trainer)
    with nullcontext() if waits else pytest.raises(NotEnoughSlotsError):
        check(*train, "--workers", "3")


def test_each_verb_on_a_cluster_says_what_can_be_known_before():
    for verb in VERBS.values():
        if verb.on_cluster:
            inspect.signature(verb.load().check_early).bind("flags", "place")


def test_a_program_of_the_user_is_not_looked_into(here):
    (here / "mine.py").write_text("")
    check("mine.py", "--data", "lost")

"""What `submit` knows of the driver that it is about to start."""

from __future__ import annotations

import inspect
from contextlib import nullcontext

import pytest

from distkeras_grid.cli.preflight import SubmittedDriver
from distkeras_grid.cli.submit import build_parser, check_job, planned
from distkeras_grid.cli.verbs import VERBS
from distkeras_grid.errors import NotEnoughSlotsError, OutputExistsError, PathNotFoundError
from tests.local_files import LocalFiles

CLUSTER = ("--deploy-mode", "cluster")
STANDALONE = ("--master", "spark://host:7077")
DATA = ("--data", "hdfs:///tiles")
TRAIN = ("train", *DATA, "--output", "hdfs:///runs/first", "--model", "nets:net")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path


class Files(LocalFiles):
    """Hadoop's, whose default file system is an HDFS that has all inputs."""

    def exists(self, uri):
        return super().exists(uri.removeprefix("file:")) if uri.startswith("file:") else True

    def list_names(self, uri):
        if uri.startswith("file:"):
            return super().list_names(uri.removeprefix("file:"))
        raise PathNotFoundError(uri)


def check(*arguments):
    flags = build_parser().parse_args(arguments)
    check_job(flags, planned(flags), Files())


def driver(*arguments):
    submission = planned(build_parser().parse_args([*arguments, "compact", *DATA]))
    return SubmittedDriver(submission, Files())


def test_files_of_a_containers_host_are_not_looked_for_here():
    at_lost, at_run = ("--data", "file:/lost"), ("--output", "file:run", "--overwrite")
    check(*CLUSTER, "compact", *at_lost)
    check(*CLUSTER, "predict", *DATA, "--model", "hdfs:///m.keras", *at_run[:2])
    with pytest.raises(PathNotFoundError):
        check("compact", *at_lost)
    with pytest.raises(OutputExistsError):
        check("predict", *DATA, "--model", "hdfs:///m.keras", *at_run[:2])


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
    assert driver(*flags).submission.slots == slots
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

"""A lock and Spark's JVM, without a JVM: `cli/test_lock_of_session.py` has a real one."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest
from pyspark import SparkContext, java_gateway

from distkeras_grid.cli.lock import hold_lock
from distkeras_grid.errors import BusyError
from distkeras_grid.spark import driver_jvm
from distkeras_grid.spark.driver_jvm import pass_to_jvm, start_context, with_address


class NoJavaError(Exception):
    """Raised in place of the start of a JVM."""


@pytest.fixture
def started(monkeypatch):
    """What JVMs are started with, in a process that has none yet."""
    asked = []

    def launch(conf, popen):
        asked.append((dict(conf.getAll()), popen))
        raise NoJavaError

    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    return asked


def test_a_jvm_that_is_started_under_a_lock_inherits_it(tmp_path, started):
    with hold_lock(str(tmp_path / "lock"), "tile") as lock:
        descriptor = lock.descriptor
        with pytest.raises(NoJavaError):
            start_context({"spark.master": "local[1]"})
    assert started == [({"spark.master": "local[1]"}, {"pass_fds": (descriptor,)})]


def test_without_a_lock_and_beside_a_jvm_pyspark_starts_what_it_needs(
    tmp_path, started, monkeypatch
):
    start_context({})
    monkeypatch.setattr(SparkContext, "_gateway", object())
    with hold_lock(str(tmp_path / "lock"), "tile"):
        start_context({})
    assert started == []


def test_the_session_is_ended_before_the_file_is_given_up(monkeypatch):
    stopped = []
    context = SimpleNamespace(stop=lambda: stopped.append(1))
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with pass_to_jvm(0):
        pass
    # The session is somebody else's.
    assert stopped == []
    with pass_to_jvm(0) as file:
        file.by_jvm = True
    assert stopped == [1]
    assert file.idle


def test_a_session_that_does_not_end_keeps_the_lock(tmp_path, monkeypatch):
    path = str(tmp_path / "lock")
    never = threading.Event()
    context = SimpleNamespace(stop=lambda: never.wait(30))
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    monkeypatch.setattr(driver_jvm, "STOP_SECONDS", 0.1)
    with hold_lock(path, "tile") as lock:
        jvm = os.dup(lock.descriptor)
        driver_jvm._jvm_file.get().by_jvm = True
    with pytest.raises(BusyError):
        hold_lock(path, "train").__enter__()
    # The JVM ends.
    os.close(jvm)
    never.set()
    with hold_lock(path, "train"):
        pass


@pytest.mark.parametrize(
    ("name", "set_by_user", "during"),
    [
        ("localhost", None, None),
        ("name.invalid", None, "127.0.0.1"),
        ("name.invalid", "10.0.0.7", "10.0.0.7"),
    ],
)
def test_a_host_without_an_address_gets_one_while_its_jvm_starts(
    monkeypatch, name, set_by_user, during
):
    monkeypatch.setattr(driver_jvm.socket, "gethostname", lambda: name)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    if set_by_user:
        monkeypatch.setenv("SPARK_LOCAL_IP", set_by_user)
    with with_address():
        assert os.environ.get("SPARK_LOCAL_IP") == during
    assert os.environ.get("SPARK_LOCAL_IP") == set_by_user

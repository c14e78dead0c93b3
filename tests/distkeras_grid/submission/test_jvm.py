"""The JVM without Spark ends with its work, also if it is too busy to end by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark import java_gateway
from pyspark.errors import PySparkRuntimeError

from distkeras_grid.errors import ClusterError, NotAuthenticatedError
from distkeras_grid.submission import jvm


@pytest.mark.parametrize(
    ("program", "patience", "code"),
    [("input()", 30.0, 1), ("import time; time.sleep(99)", 1.0, -9)],
)
def test_it_ends_with_its_input_or_is_killed(monkeypatch, program, patience, code):
    monkeypatch.setattr(jvm, "STOP_SECONDS", patience)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    jvm._stop(process)
    assert process.returncode == code


def test_a_host_that_does_not_answer_is_tried_once_unless_the_user_says_more(monkeypatch):
    """Hadoop's own default is 45 tries of 20 s, for each path that `submit` looks up."""
    started = []

    def launch(conf, _options):
        started.append(dict(conf.getAll()))
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    (name,) = jvm.ONE_CONNECT
    for settings in ({}, {name: "3"}):
        with pytest.raises(ClusterError), jvm.hadoop_client(settings):
            pass
    assert [each[name] for each in started] == ["0", "3"]


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (
            "org.apache.hadoop.security.KerberosAuthException: Login failure for user: ada@GRID "
            "from keytab /ada.keytab javax.security.auth.login.LoginException: Unable to obtain "
            "password from user",
            NotAuthenticatedError,
        ),
        ("Error: Could not find or load main class", ClusterError),
    ],
)
def test_what_java_says_when_it_does_not_start_is_told(monkeypatch, told, error):
    """A keytab of somebody else is no fault of the cluster."""

    def launch(_conf, options):
        options["stderr"].write(told.encode())
        options["stderr"].flush()
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    with pytest.raises(error, match=told[:20]), jvm.hadoop_client({}):
        pass
